#include "plan/program_set.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "graph/ops/collective.h"
#include "graph/ops/compress.h"
#include "graph/ops/embedding.h"
#include "passes/differentiate.h"
#include "passes/fetch.h"
#include "passes/fuse.h"
#include "passes/offload.h"
#include "passes/order.h"
#include "plan/fp8_products.h"

namespace convoy {
namespace {

void add_batch_inputs(const Graph& graph, Layout& layout) {
  for (std::size_t id = 0; id < graph.value_count(); ++id) {
    const Value& value = graph.value(static_cast<ValueId>(id));
    if (value.role == Role::kBatch && value.producer < 0) layout.add(Role::kBatch, value.name, value.spec);
  }
}

Graph differentiated_graph(const Model& model, const TrainShape& shape, bool accumulate) {
  ModelGraph built = model.build(graph_options(shape, GraphKind::kTrain, shape.rows));
  const ValueId scale =
      built.graph.add_source(Role::kBatch, batch_input::kLossScale, {accumulation_dtype(shape.dtype), {1}});
  std::vector<std::pair<ValueId, ValueId>> seeds = {{built.result, scale}};
  if (built.auxiliary != kNoValue)
    seeds.emplace_back(built.auxiliary, built.graph.add_source(Role::kBatch, batch_input::kAuxiliaryScale,
                                                               {accumulation_dtype(shape.dtype), {1}}));
  std::vector<ValueId> trained;
  for (std::size_t p = 0; p < built.weights.size(); ++p) {
    if (model.parameters()[p].trainable) trained.push_back(built.weights[p]);
  }
  differentiate(built.graph, {std::move(seeds), trained, accumulate, shape.narrow_gradients});
  if (shape.fp8) quantize_products(built.graph, weights_for_fp8(model, built));
  return std::move(built.graph);
}

Graph micro_graph(const Model& model, const TrainShape& shape, bool accumulate) {
  Graph graph = differentiated_graph(model, shape, accumulate);
  recompute(graph, {shape.recompute, shape.recompute_steps, shape.rates});
  fuse(graph);
  order(graph);
  if (shape.offload_activations)
    offload_activations(graph, {shape.recompute != RecomputeMode::kNone, shape.offload_least_bytes});
  // After the order, which depends on sizes: communication must come in the same order on every rank.
  if (shape.zero.shards_weights()) gather_weights(graph, shape.zero);
  if (shape.zero.offload_param) fetch_weights(graph);
  if (shape.zero.shards_gradients()) shard_gradients(graph, shape.zero);
  return graph;
}

Graph forward_graph(const Model& model, const GraphOptions& options, const ZeroOptions& zero) {
  ModelGraph built = model.build(options);
  fuse(built.graph);
  order(built.graph);
  if (zero.shards_weights()) gather_weights(built.graph, zero);
  if (zero.offload_param) fetch_weights(built.graph);
  return std::move(built.graph);
}

// A tensor that is held whole or as a shard, and this rank's shard of it by name.
void add_sharded(Layout& layout, Role role, const std::string& name, const TensorSpec& spec, const ZeroOptions& zero,
                 bool whole) {
  const ShardCut cut = zero_cut(spec.numel(), zero.world);
  const TensorSpec shard{spec.dtype, {cut.length(zero.rank)}};
  if (whole) {
    layout.add(role, name, spec);
    layout.add_view(role, shard_name(name), name, shard, cut.begin(zero.rank));
  } else {
    layout.add(role, shard_name(name), shard);
  }
}

// By parameter: the type of its gradient.
std::vector<DType> gradient_types(const Model& model, const TrainShape& shape) {
  std::vector<DType> types(model.parameters().size(), accumulation_dtype(shape.dtype));
  if (!shape.narrow_gradients) return types;
  const ModelGraph built = model.build(graph_options(shape, GraphKind::kTrain, shape.rows));
  const std::vector<bool> narrow = narrowed(built.graph, built.weights);
  for (std::size_t p = 0; p < types.size(); ++p) {
    if (narrow[p]) types[p] = shape.dtype;
  }
  return types;
}

// Those of one type lie together, so that slots are summed in one piece per type.
void add_gradients(const Model& model, const TrainShape& shape, Layout& layout,
                   std::vector<ProgramSet::GradientRun>& runs) {
  const std::vector<DType> types = gradient_types(model, shape);
  for (const DType type : std::set<DType>(types.begin(), types.end())) {
    const std::size_t begin = layout.bytes(Role::kGradient);
    for (std::size_t p = 0; p < types.size(); ++p) {
      const Parameter& parameter = model.parameters()[p];
      if (types[p] != type || !parameter.trainable) continue;
      add_sharded(layout, Role::kGradient, parameter.name, {type, parameter.shape}, shape.zero,
                  !shape.zero.shards_gradients());
    }
    const std::size_t end = layout.bytes(Role::kGradient);
    if (end > begin) runs.push_back({type, begin, end - begin});
  }
}

void add_parameters(const Model& model, const TrainShape& shape, Layout& layout) {
  for (const Parameter& parameter : model.parameters()) {
    const std::int64_t numel = parameter.shape.numel();
    const DType wide = accumulation_dtype(shape.dtype);
    add_sharded(layout, Role::kWeight, parameter.name, {shape.dtype, parameter.shape}, shape.zero,
                !shape.zero.shards_weight(numel));
    if (!parameter.trainable || !shape.training) continue;
    const TensorSpec state{wide, shape.zero.shards_state() ? Shape{owned_range(shape, numel).count} : parameter.shape};
    if (shape.has_master()) layout.add(Role::kMaster, parameter.name, state);
    for (int m = 0; m < shape.optimizer.moments(); ++m)
      layout.add(Role::kMoment, moment_name(m, parameter.name), {shape.moment_dtype(), state.shape});
    if (shape.zero.world > 1 && shape.zero.one_bit)
      layout.add(Role::kMoment, error_name(parameter.name), {wide, parameter.shape});
  }
  if (shape.training) layout.add(Role::kBatch, kUpdateScalarsName, {DType::kF64, {kUpdateScalars}});
}

// The parameters that the model looks rows up in.
std::set<std::string> embedding_tables(const Model& model, const TrainShape& shape) {
  std::set<std::string> names;
  const ModelGraph built = model.build(graph_options(shape, GraphKind::kLoss, shape.rows));
  for (const Node& node : built.graph.nodes()) {
    if (dynamic_cast<const Embedding*>(node.op.get()) == nullptr) continue;
    for (ValueId id : node.inputs) {
      if (id != kNoValue && built.graph.value(id).role == Role::kWeight) names.insert(built.graph.value(id).name);
    }
  }
  return names;
}

// The optimizer's side of the update: what this rank owns of each parameter.
class UpdateGraph {
 public:
  UpdateGraph(const Model& model, const TrainShape& shape, const Layout& layout)
      : model_(model), shape_(shape), layout_(layout) {
    graph_.current_phase = Phase::kUpdate;
  }

  Graph build() {
    scalars_ = graph_.add_source(Role::kBatch, kUpdateScalarsName, {DType::kF64, {kUpdateScalars}});
    for (const Parameter& parameter : model_.parameters()) {
      const OwnedRange owned = owned_range(shape_, parameter.shape.numel());
      const std::string name = owned_name(shape_, parameter.name);
      gradients_.push_back(owned.count == 0 || !parameter.trainable
                               ? kNoValue
                               : graph_.add_source(Role::kGradient, name, layout_.find(Role::kGradient, name).spec));
    }
    add_norm();
    add_optimizer();
    if (shape_.zero.shards_state()) gather_updated();
    graph_.outputs.push_back(norm_);
    return std::move(graph_);
  }

 private:
  DType wide() const { return accumulation_dtype(shape_.dtype); }
  TensorSpec owned_spec(const Parameter& parameter, DType dtype) const {
    if (!shape_.zero.shards_state()) return {dtype, parameter.shape};
    return {dtype, {owned_range(shape_, parameter.shape.numel()).count}};
  }
  int start(std::shared_ptr<const CollectiveOp> op, std::vector<ValueId> inputs, std::vector<ValueId>* outputs) {
    const int channel = op->number;
    *outputs = graph_.add(std::move(op), std::move(inputs));
    return channel;
  }

  void add_norm() {
    std::vector<SquareSums::Part> parts;
    std::vector<ValueId> inputs;
    std::vector<std::int64_t> blocks;
    std::int64_t all = 0;
    for (std::size_t p = 0; p < gradients_.size(); ++p) {
      if (!model_.parameters()[p].trainable) continue;
      const std::int64_t numel = model_.parameters()[p].shape.numel();
      const std::int64_t block = norm_block(numel);
      blocks.push_back((numel + block - 1) / block);
      if (gradients_[p] != kNoValue) {
        parts.push_back({all + owned_range(shape_, numel).first / block, block});
        inputs.push_back(gradients_[p]);
      }
      all += blocks.back();
    }
    ValueId sums = graph_.add_op(SquareSums{std::move(parts), all}, inputs)[0];
    if (shape_.zero.shards_state()) {
      std::vector<ValueId> summed;
      const int channel = start(std::make_shared<const AllReduceStart>(channels_++, 1), {sums}, &summed);
      graph_.add_op(CollectiveWait{channel}, summed);
      sums = summed[0];
    }
    const double epsilon = shape_.optimizer.kind == OptimizerKind::kOpenAiAdam ? 0 : 1e-6;
    norm_ = graph_.add_op(NormOfSums{std::move(blocks), shape_.max_grad_norm, epsilon}, {sums, scalars_}, {"norm"})[0];
  }

  void add_optimizer() {
    std::vector<ValueId> inputs = {scalars_, norm_};
    std::vector<float> decays;
    std::vector<bool> masked;
    std::vector<std::size_t> owners;
    std::vector<OptimizerStep::Origin> origins;
    std::set<std::string> tables;
    if (shape_.sparse_embeddings) tables = embedding_tables(model_, shape_);
    for (std::size_t p = 0; p < gradients_.size(); ++p) {
      if (gradients_[p] == kNoValue) continue;
      const Parameter& parameter = model_.parameters()[p];
      const TensorSpec state = owned_spec(parameter, wide());
      decays.push_back(parameter.decay || shape_.decay_bias_norm ? static_cast<float>(shape_.weight_decay) : 0.0f);
      masked.push_back(tables.contains(parameter.name));
      owners.push_back(p);
      origins.push_back({static_cast<std::uint32_t>(p), owned_range(shape_, parameter.shape.numel()).first});
      inputs.push_back(
          graph_.add_source(Role::kWeight, owned_name(shape_, parameter.name), owned_spec(parameter, shape_.dtype)));
      inputs.push_back(gradients_[p]);
      if (shape_.has_master()) inputs.push_back(graph_.add_source(Role::kMaster, parameter.name, state));
      for (int m = 0; m < shape_.optimizer.moments(); ++m)
        inputs.push_back(
            graph_.add_source(Role::kMoment, moment_name(m, parameter.name), {shape_.moment_dtype(), state.shape}));
    }
    updated_.assign(gradients_.size(), kNoValue);
    if (owners.empty()) return;
    OptimizerSettings settings = shape_.optimizer;
    settings.seed = shape_.seed;
    const std::size_t outputs = (shape_.has_master() ? 2 : 1) + static_cast<std::size_t>(shape_.optimizer.moments());
    const std::vector<ValueId> made = graph_.add_op(
        OptimizerStep{settings, shape_.has_master(), std::move(decays), std::move(masked), std::move(origins)}, inputs);
    for (std::size_t i = 0; i < owners.size(); ++i) updated_[owners[i]] = made[i * outputs];
    graph_.outputs = made;
  }

  // Every rank gets the others' part of the weights that it holds whole.
  void gather_updated() {
    std::vector<std::size_t> held;
    std::vector<std::int64_t> numels;
    for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
      const std::int64_t numel = model_.parameters()[p].shape.numel();
      if (shape_.zero.shards_weight(numel) || !model_.parameters()[p].trainable) continue;
      held.push_back(p);
      numels.push_back(numel);
    }
    const std::vector<std::size_t> buckets = cut_buckets(numels, shape_.zero.gather_bucket);
    for (std::size_t b = 0; b + 1 < buckets.size() && !held.empty(); ++b)
      gather_bucket(std::span(held).subspan(buckets[b], buckets[b + 1] - buckets[b]));
  }

  void gather_bucket(std::span<const std::size_t> bucket) {
    std::vector<ShardCut> cuts;
    std::vector<Shape> shapes;
    std::vector<ValueId> shards;
    for (std::size_t p : bucket) {
      const Parameter& parameter = model_.parameters()[p];
      cuts.push_back(zero_cut(parameter.shape.numel(), shape_.zero.world));
      shapes.push_back(parameter.shape);
      shards.push_back(updated_[p] != kNoValue
                           ? updated_[p]
                           : graph_.add_source(Role::kWeight, shard_name(parameter.name), {shape_.dtype, {0}}));
    }
    std::vector<ValueId> whole;
    const int channel = start(std::make_shared<const AllGatherStart>(channels_++, std::move(cuts), std::move(shapes)),
                              std::move(shards), &whole);
    for (std::size_t i = 0; i < bucket.size(); ++i) {
      graph_.value(whole[i]).role = Role::kWeight;
      graph_.value(whole[i]).name = model_.parameters()[bucket[i]].name;
      graph_.outputs.push_back(whole[i]);
    }
    graph_.add_op(CollectiveWait{channel}, whole);
  }

  const Model& model_;
  const TrainShape& shape_;
  const Layout& layout_;
  Graph graph_;
  ValueId scalars_ = kNoValue, norm_ = kNoValue;
  std::vector<ValueId> gradients_, updated_;  // by parameter; kNoValue where this rank owns nothing
  int channels_ = 0;
};

// Stage 0 and 1: sums one gradient slot over the ranks, in place; stage 1 only this rank's shards of it.
class ReduceGraph {
 public:
  ReduceGraph(const Model& model, const TrainShape& shape, const Layout& layout)
      : model_(model), shape_(shape), zero_(shape.zero), layout_(layout) {
    graph_.current_phase = Phase::kUpdate;
  }

  Graph build() {
    // A collective operation has one type.
    std::map<DType, std::vector<const Parameter*>> by_type;
    for (const Parameter& parameter : model_.parameters()) {
      if (parameter.trainable) by_type[gradient_spec(parameter).dtype].push_back(&parameter);
    }
    for (const auto& [type, parameters] : by_type) {
      std::vector<std::int64_t> numels;
      for (const Parameter* parameter : parameters) numels.push_back(parameter->shape.numel());
      const std::vector<std::size_t> buckets = cut_buckets(numels, zero_.reduce_bucket);
      for (std::size_t b = 0; b + 1 < buckets.size(); ++b)
        start(std::span(parameters).subspan(buckets[b], buckets[b + 1] - buckets[b]), zero_.converts(type));
    }
    for (Started& each : started_) finish(each);
    return std::move(graph_);
  }

 private:
  // A bucket under way: what was sent and received, by tensor, and the gradients that it becomes.
  struct Started {
    int channel;
    bool narrow;
    std::vector<ValueId> sent, received, gradients;
  };
  const TensorSpec& gradient_spec(const Parameter& parameter) const {
    return layout_.find(Role::kGradient, parameter.name).spec;
  }

  void start(std::span<const Parameter* const> parameters, bool narrow) {
    const auto channel = static_cast<int>(started_.size());
    Started bucket{channel, narrow, {}, {}, {}};
    std::vector<ShardCut> cuts;
    std::vector<Shape> shapes;
    for (const Parameter* parameter : parameters) {
      const TensorSpec& spec = gradient_spec(*parameter);
      const ValueId gradient = graph_.add_source(Role::kGradient, parameter->name, spec);
      bucket.gradients.push_back(gradient);
      cuts.push_back(zero_cut(spec.numel(), zero_.world));
      ValueId sent = gradient;
      if (zero_.one_bit) {
        const ValueId error = graph_.add_source(Role::kMoment, error_name(parameter->name), spec);
        const auto made = graph_.add_op(SignCompress{}, {gradient, error});
        graph_.outputs.push_back(made[1]);
        sent = made[0];
        const std::int64_t bytes = sign_bytes(spec.numel());
        cuts.back() = {bytes * zero_.world, bytes};
        shapes.push_back({bytes * zero_.world});
      } else if (narrow) {
        sent = graph_.add_op(Convert{zero_.wire}, {gradient})[0];
      }
      bucket.sent.push_back(sent);
    }
    if (zero_.one_bit) {
      bucket.received = graph_.add_op(AllGatherStart{channel, std::move(cuts), std::move(shapes)}, bucket.sent);
    } else if (zero_.shards_state()) {
      bucket.received = graph_.add_op(ReduceScatterStart{channel, zero_.rank, std::move(cuts)}, bucket.sent);
      if (!narrow) name_all(bucket);
    } else {
      bucket.received = graph_.add_op(AllReduceStart{channel, static_cast<int>(parameters.size())}, bucket.sent);
      if (!narrow) graph_.outputs.insert(graph_.outputs.end(), bucket.received.begin(), bucket.received.end());
    }
    started_.push_back(std::move(bucket));
  }

  void finish(Started& bucket) {
    std::vector<ValueId> held = bucket.sent;
    held.insert(held.end(), bucket.received.begin(), bucket.received.end());
    graph_.add_op(CollectiveWait{bucket.channel}, held);
    if (!zero_.one_bit && !bucket.narrow) return;
    for (std::size_t i = 0; i < bucket.received.size(); ++i) {
      const TensorSpec spec = graph_.spec(bucket.gradients[i]);
      ValueId& received = bucket.received[i];
      received = zero_.one_bit ? graph_.add_op(SignSum{zero_.world, spec}, {received})[0]
                               : graph_.add_op(Convert{spec.dtype}, {received})[0];
    }
    name_all(bucket);
  }

  // What was received becomes the gradients' storage, or that of this rank's shards.
  void name_all(const Started& bucket) {
    for (std::size_t i = 0; i < bucket.received.size(); ++i) {
      Value& value = graph_.value(bucket.received[i]);
      value.role = Role::kGradient;
      value.name = owned_name(shape_, graph_.value(bucket.gradients[i]).name);
      graph_.outputs.push_back(bucket.received[i]);
    }
  }

  const Model& model_;
  const TrainShape& shape_;
  const ZeroOptions& zero_;
  const Layout& layout_;
  Graph graph_;
  std::vector<Started> started_;
};

struct BatchGraphs {
  std::optional<Graph> micro, accumulate, eval;
};

// The graphs for batches of one shape; adds what they read to the layout.
BatchGraphs batch_graphs(const Model& model, const TrainShape& shape, Layout& layout) {
  BatchGraphs made;
  if (shape.training) {
    made.micro = micro_graph(model, shape, false);
    add_batch_inputs(*made.micro, layout);
    if (!shape.deterministic && shape.accumulation > 1 && !shape.zero.shards_gradients())
      made.accumulate = micro_graph(model, shape, true);
  }
  if (shape.eval_rows > 0) {
    made.eval = forward_graph(model, graph_options(shape, GraphKind::kLoss, shape.eval_rows), shape.zero);
    add_batch_inputs(*made.eval, layout);
  }
  return made;
}

void compile_batch(const BatchGraphs& graphs, const Layout& layout, const WorkspaceSizes& workspaces,
                   BatchPrograms& to) {
  const std::vector<std::string> results = {"statistics", "auxiliary"};
  if (graphs.micro) to.micro = compile(*graphs.micro, layout, workspaces, "micro-batch", results);
  if (graphs.accumulate)
    to.micro_accumulate = compile(*graphs.accumulate, layout, workspaces, "micro-batch, accumulating", results);
  if (graphs.eval) to.eval = compile(*graphs.eval, layout, workspaces, "evaluation", results);
}

void take_largest(ArenaSizes& sizes, const Program& program) {
  auto& activations = sizes.bytes[static_cast<std::size_t>(Role::kActivation)];
  activations = std::max(activations, program.activation_bytes);
  auto& on_host = sizes.bytes[static_cast<std::size_t>(Role::kHostActivation)];
  on_host = std::max(on_host, program.host_activation_bytes);
  sizes.workspace = std::max(sizes.workspace, program.workspace_bytes);
}

void take_persistent(ArenaSizes& sizes, const Layout& layout) {
  for (int role = 0; role < kRoleCount; ++role) {
    if (static_cast<Role>(role) != Role::kActivation && static_cast<Role>(role) != Role::kHostActivation)
      sizes.bytes[static_cast<std::size_t>(role)] = layout.bytes(static_cast<Role>(role));
  }
}

}  // namespace

std::vector<RecomputeStep> recompute_steps(const Model& model, const TrainShape& shape) {
  return recompute_steps(differentiated_graph(model, shape, false), shape.rates);
}

ProgramSet make_programs(const Model& model, const TrainShape& shape, const WorkspaceSizes& workspaces) {
  // The update of sharded state would gather whole weights into host memory.
  check(!shape.zero.offload_param || shape.zero.world == 1 || shape.zero.shards_weights() || !shape.training,
        "weights of several ranks are offloaded as shards, with stage 3");
  ProgramSet set;
  add_parameters(model, shape, set.layout);
  if (shape.training) add_gradients(model, shape, set.layout, set.gradient_runs);
  // All batch inputs are known before anything is compiled: they may move.
  std::vector<BatchGraphs> graphs;
  for (std::size_t bucket = 0; bucket < shape.buckets(); ++bucket)
    graphs.push_back(batch_graphs(model, shape.of_bucket(bucket), set.layout));
  set.shorter.resize(shape.shorter.size());
  for (std::size_t bucket = 0; bucket < shape.buckets(); ++bucket) {
    BatchPrograms& to = bucket < set.shorter.size() ? set.shorter[bucket] : set;
    compile_batch(graphs[bucket], set.layout, workspaces, to);
  }
  if (shape.training) {
    if (shape.zero.world > 1 && !shape.zero.shards_gradients())
      set.reduce = compile(ReduceGraph(model, shape, set.layout).build(), set.layout, workspaces, "reduce", {});
    set.update = compile(UpdateGraph(model, shape, set.layout).build(), set.layout, workspaces, "update", {"norm"});
  }

  take_persistent(set.sizes, set.layout);
  for (const Role role : {Role::kMaster, Role::kMoment})
    set.sizes.offloaded[static_cast<std::size_t>(role)] = shape.offload_optimizer;
  set.sizes.offloaded[static_cast<std::size_t>(Role::kWeight)] = shape.zero.offload_param;
  set.sizes.offloaded[static_cast<std::size_t>(Role::kHostActivation)] = true;
  set.sizes.gradient_slots = shape.deterministic ? tree_slots(shape.accumulation) : 1;
  // Sharded gradients are not accumulated by the operations that make them: one slot for what comes in.
  if (!shape.deterministic && shape.zero.shards_gradients() && shape.accumulation > 1) set.sizes.gradient_slots = 2;
  std::vector<const Program*> all = {set.reduce ? &*set.reduce : nullptr, &set.update};
  for (std::size_t bucket = 0; bucket < shape.buckets(); ++bucket) {
    const BatchPrograms& each = set.of_bucket(bucket);
    all.push_back(&each.micro);
    all.push_back(each.micro_accumulate ? &*each.micro_accumulate : nullptr);
    all.push_back(each.eval ? &*each.eval : nullptr);
  }
  for (const Program* program : all) {
    if (program == nullptr) continue;
    take_largest(set.sizes, *program);
    set.activation_lower_bound = std::max(set.activation_lower_bound, program->activation_lower_bound);
  }
  return set;
}

}  // namespace convoy
