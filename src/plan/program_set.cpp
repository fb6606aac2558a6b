#include "plan/program_set.h"

#include <algorithm>
#include <bit>

#include "passes/differentiate.h"
#include "passes/fuse.h"
#include "passes/order.h"

namespace convoy {
namespace {

GraphOptions graph_options(const TrainShape& shape, GraphKind kind, std::int64_t tokens) {
  GraphOptions options;
  options.kind = kind;
  options.tokens = tokens;
  options.table_length = shape.seq;
  options.dtype = shape.dtype;
  options.seed = shape.seed;
  options.loss = shape.loss;
  return options;
}

void add_batch_inputs(const Graph& graph, Layout& layout) {
  for (std::size_t id = 0; id < graph.value_count(); ++id) {
    const Value& value = graph.value(static_cast<ValueId>(id));
    if (value.role == Role::kBatch && value.producer < 0) layout.add(Role::kBatch, value.name, value.spec);
  }
}

Graph micro_graph(const Model& model, const TrainShape& shape, bool accumulate) {
  ModelGraph built = model.build(graph_options(shape, GraphKind::kTrain, shape.tokens()));
  const ValueId scale =
      built.graph.add_source(Role::kBatch, batch_input::kLossScale, {accumulation_dtype(shape.dtype), {1}});
  differentiate(built.graph, {{{built.result, scale}}, built.weights, accumulate});
  recompute(built.graph, shape.recompute);
  fuse(built.graph);
  order(built.graph);
  return std::move(built.graph);
}

Graph forward_graph(const Model& model, const GraphOptions& options) {
  ModelGraph built = model.build(options);
  fuse(built.graph);
  order(built.graph);
  return std::move(built.graph);
}

void add_parameters(const Model& model, const TrainShape& shape, Layout& layout) {
  for (const Parameter& parameter : model.parameters()) {
    const TensorSpec wide{accumulation_dtype(shape.dtype), parameter.shape};
    layout.add(Role::kWeight, parameter.name, {shape.dtype, parameter.shape});
    layout.add(Role::kGradient, parameter.name, wide);
    if (shape.has_master()) layout.add(Role::kMaster, parameter.name, wide);
    for (int m = 0; m < shape.optimizer.moments(); ++m) layout.add(Role::kMoment, moment_name(m, parameter.name), wide);
  }
  layout.add(Role::kBatch, kUpdateScalarsName, {DType::kF64, {kUpdateScalars}});
}

Graph update_graph(const Model& model, const TrainShape& shape) {
  Graph graph;
  graph.current_phase = Phase::kUpdate;
  const DType wide = accumulation_dtype(shape.dtype);
  std::vector<ValueId> gradients;
  for (const Parameter& parameter : model.parameters()) {
    gradients.push_back(graph.add_source(Role::kGradient, parameter.name, {wide, parameter.shape}));
  }
  const ValueId norm = graph.add_op(GradientNorm{shape.max_grad_norm}, gradients, {"norm"})[0];
  std::vector<ValueId> inputs = {graph.add_source(Role::kBatch, kUpdateScalarsName, {DType::kF64, {kUpdateScalars}}),
                                 norm};
  std::vector<float> decays;
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    const Parameter& parameter = model.parameters()[p];
    decays.push_back(parameter.decay || shape.decay_bias_norm ? static_cast<float>(shape.weight_decay) : 0.0f);
    inputs.push_back(graph.add_source(Role::kWeight, parameter.name, {shape.dtype, parameter.shape}));
    inputs.push_back(gradients[p]);
    if (shape.has_master()) inputs.push_back(graph.add_source(Role::kMaster, parameter.name, {wide, parameter.shape}));
    for (int m = 0; m < shape.optimizer.moments(); ++m) {
      inputs.push_back(graph.add_source(Role::kMoment, moment_name(m, parameter.name), {wide, parameter.shape}));
    }
  }
  const auto updated = graph.add_op(OptimizerStep{shape.optimizer, shape.has_master(), std::move(decays)}, inputs);
  graph.outputs = updated;
  graph.outputs.push_back(norm);
  return graph;
}

void take_largest(ArenaSizes& sizes, const Program& program) {
  auto& activations = sizes.bytes[static_cast<std::size_t>(Role::kActivation)];
  activations = std::max(activations, program.activation_bytes);
  sizes.workspace = std::max(sizes.workspace, program.workspace_bytes);
}

void take_persistent(ArenaSizes& sizes, const Layout& layout) {
  for (int role = 0; role < kRoleCount; ++role) {
    if (static_cast<Role>(role) != Role::kActivation)
      sizes.bytes[static_cast<std::size_t>(role)] = layout.bytes(static_cast<Role>(role));
  }
}

}  // namespace

std::size_t tree_slots(std::int64_t count) {
  return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(count, 1))));
}

std::string moment_name(int moment, const std::string& parameter) {
  return (moment == 0 ? "exp_avg." : "exp_avg_sq.") + parameter;
}

ProgramSet make_programs(const Model& model, const TrainShape& shape, const WorkspaceSizes& workspaces) {
  ProgramSet set;
  add_parameters(model, shape, set.layout);
  const Graph micro = micro_graph(model, shape, false);
  add_batch_inputs(micro, set.layout);
  std::optional<Graph> accumulate, eval;
  if (!shape.deterministic && shape.accumulation > 1) accumulate = micro_graph(model, shape, true);
  if (shape.eval_rows > 0) {
    eval = forward_graph(model, graph_options(shape, GraphKind::kLoss, shape.eval_tokens()));
    add_batch_inputs(*eval, set.layout);
  }
  set.micro = compile(micro, set.layout, workspaces, "micro-batch", {"statistics"});
  if (accumulate)
    set.micro_accumulate = compile(*accumulate, set.layout, workspaces, "micro-batch, accumulating", {"statistics"});
  if (eval) set.eval = compile(*eval, set.layout, workspaces, "evaluation", {"statistics"});
  set.update = compile(update_graph(model, shape), set.layout, workspaces, "update", {"norm"});

  take_persistent(set.sizes, set.layout);
  set.sizes.gradient_slots = shape.deterministic ? tree_slots(shape.accumulation) : 1;
  for (const Program* program : {&set.micro, set.micro_accumulate ? &*set.micro_accumulate : nullptr,
                                 set.eval ? &*set.eval : nullptr, &set.update}) {
    if (program == nullptr) continue;
    take_largest(set.sizes, *program);
    set.activation_lower_bound = std::max(set.activation_lower_bound, program->activation_lower_bound);
  }
  return set;
}

LogitsProgram make_logits_program(const Model& model, DType dtype, std::int64_t tokens, std::int64_t rows,
                                  const WorkspaceSizes& workspaces) {
  GraphOptions options;
  options.kind = GraphKind::kLogits;
  options.tokens = tokens;
  options.table_length = tokens;
  options.logit_rows = rows;
  options.dtype = dtype;
  const Graph graph = forward_graph(model, options);
  LogitsProgram made;
  for (const Parameter& parameter : model.parameters())
    made.layout.add(Role::kWeight, parameter.name, {dtype, parameter.shape});
  add_batch_inputs(graph, made.layout);
  made.program = compile(graph, made.layout, workspaces, "logits", {"logits"});
  take_persistent(made.sizes, made.layout);
  take_largest(made.sizes, made.program);
  return made;
}

}  // namespace convoy
