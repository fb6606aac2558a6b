#include "program/program.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/ops/collective.h"
#include "graph/ops/host_copy.h"
#include "passes/place.h"

namespace convoy {
namespace {

std::string_view short_name(Role role) {
  switch (role) {
    case Role::kWeight:
      return "w";
    case Role::kGradient:
      return "g";
    case Role::kMaster:
      return "master";
    case Role::kMoment:
      return "m";
    case Role::kCache:
      return "kv";
    case Role::kBatch:
      return "in";
    case Role::kActivation:
      return "a";
    case Role::kHostActivation:
      return "host";
  }
  return "?";
}

std::string print(const BufferRef& ref) {
  if (!ref.present) return "-";
  return fmt::format("{}+{:#x}:{}", short_name(ref.arena), ref.offset, ref.spec.str());
}

std::string join(const std::vector<BufferRef>& refs) {
  std::string text;
  for (const BufferRef& ref : refs) text += (text.empty() ? "" : ", ") + print(ref);
  return text;
}

}  // namespace

const BufferRef& Program::output(const std::string& output_name) const {
  for (const auto& [key, ref] : outputs) {
    if (key == output_name) return ref;
  }
  throw internal_error(fmt::format("program {} has no output '{}'", name, output_name));
}

Cost Program::cost() const {
  Cost total;
  for (const Instruction& instruction : instructions) {
    total.flops += instruction.cost.flops;
    total.bytes += instruction.cost.bytes;
  }
  return total;
}

Cost Program::cost(Phase phase) const {
  Cost total;
  for (const Instruction& instruction : instructions) {
    if (instruction.phase != phase) continue;
    total.flops += instruction.cost.flops;
    total.bytes += instruction.cost.bytes;
  }
  return total;
}

Program compile(const Graph& graph, const Layout& layout, const WorkspaceSizes& workspaces, std::string name,
                const std::vector<std::string>& outputs) {
  struct Arena {
    Lifetimes lives;
    Placement placement;
  };
  const auto placed = [&](Role role) {
    Lifetimes lives = lifetimes(graph, role);
    Placement placement = place(lives, graph.nodes().size());
    return Arena{std::move(lives), std::move(placement)};
  };
  const Arena on_device = placed(Role::kActivation), on_host = placed(Role::kHostActivation);
  Program program;
  program.name = std::move(name);
  program.activation_bytes = on_device.placement.bytes;
  program.activation_lower_bound = on_device.placement.lower_bound;
  program.host_activation_bytes = on_host.placement.bytes;
  const auto resolve = [&](ValueId id) -> BufferRef {
    if (id == kNoValue) return {};
    const Value& value = graph.value(id);
    if (value.role != Role::kActivation && value.role != Role::kHostActivation)
      return {value.role, layout.find(value.role, value.name).offset, value.spec, true};
    const Arena& arena = value.role == Role::kActivation ? on_device : on_host;
    const std::int32_t buffer = arena.lives.buffer_of[static_cast<std::size_t>(id)];
    check(buffer >= 0, "an activation is read that nothing computes");
    return {value.role, arena.placement.offsets[static_cast<std::size_t>(buffer)], value.spec, true};
  };
  for (const Node& node : graph.nodes()) {
    Instruction made;
    made.op = node.op;
    made.block = node.block;
    made.phase = node.phase;
    for (ValueId id : node.inputs) made.inputs.push_back(resolve(id));
    for (ValueId id : node.outputs) made.outputs.push_back(resolve(id));
    const std::vector<const TensorSpec*> in = graph.input_specs(node);
    const std::vector<TensorSpec> out = graph.output_specs(node);
    made.cost = node.op->cost(in, out);
    const bool of_device = dynamic_cast<const CollectiveOp*>(node.op.get()) == nullptr &&
                           dynamic_cast<const HostCopyOp*>(node.op.get()) == nullptr;
    made.workspace = of_device ? workspaces.workspace(*node.op, in, out) : 0;
    program.workspace_bytes = std::max(program.workspace_bytes, aligned(made.workspace));
    program.instructions.push_back(std::move(made));
  }
  std::size_t named = 0;
  for (ValueId id : graph.outputs) {
    if (graph.value(id).role != Role::kActivation) continue;
    check(named < outputs.size(), "a program has an output without a name");
    program.outputs.emplace_back(outputs[named++], resolve(id));
  }
  return program;
}

std::string print(const Program& program) {
  const Cost total = program.cost();
  std::string text = fmt::format(
      "program {}: {} instructions, {:.3f} GFLOP, activations {} ({:.2f}% above the largest live set), workspace "
      "{}{}\n",
      program.name, program.instructions.size(), total.flops * 1e-9, human_bytes(program.activation_bytes),
      program.activation_lower_bound == 0 ? 0.0
                                          : 100.0 * (static_cast<double>(program.activation_bytes) /
                                                         static_cast<double>(program.activation_lower_bound) -
                                                     1),
      human_bytes(program.workspace_bytes),
      program.host_activation_bytes > 0 ? ", host activations " + human_bytes(program.host_activation_bytes) : "");
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    const std::string block = instruction.block >= 0 ? fmt::format("block {}", instruction.block) : "";
    std::string operation(instruction.op->name());
    if (const std::string attributes = instruction.op->attributes(); !attributes.empty())
      operation += " {" + attributes + "}";
    text += fmt::format("{:5} {:9} {:9} {} = {} ({})\n", i, name_of(instruction.phase), block,
                        join(instruction.outputs), operation, join(instruction.inputs));
  }
  return text;
}

std::string summarize(const Program& program) {
  struct Row {
    int count = 0;
    Cost cost;
  };
  std::map<std::string, Row> rows;
  for (const Instruction& instruction : program.instructions) {
    Row& row = rows[std::string(instruction.op->name())];
    ++row.count;
    row.cost.flops += instruction.cost.flops;
    row.cost.bytes += instruction.cost.bytes;
  }
  std::string text;
  for (const auto& [operation, row] : rows) {
    text += fmt::format("{:28} {:5}  {:10.3f} GFLOP  {:10.3f} MB\n", operation, row.count, row.cost.flops * 1e-9,
                        row.cost.bytes * 1e-6);
  }
  return text;
}

std::string human_bytes(std::size_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (amount >= 1024 && unit + 1 < std::size(kUnits)) {
    amount /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", amount, kUnits[unit]);
}

}  // namespace convoy
