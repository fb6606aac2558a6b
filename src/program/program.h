// A program: what one rank does in one phase, as a flat list of instructions with every buffer placed. The executor
// runs it, the memory report measures it, and both read the same list.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "program/layout.h"

namespace convoy {

// A tensor in an arena.
struct BufferRef {
  Role arena = Role::kActivation;
  std::size_t offset = 0;
  TensorSpec spec;
  bool present = false;  // false for an absent optional operand
};

struct Instruction {
  std::shared_ptr<const Op> op;
  std::vector<BufferRef> inputs;
  std::vector<BufferRef> outputs;
  std::size_t workspace = 0;  // bytes of scratch, at the start of the workspace arena
  Cost cost;
  int block = -1;
  Phase phase = Phase::kForward;
};

struct Program {
  std::string name;
  std::vector<Instruction> instructions;
  std::vector<std::pair<std::string, BufferRef>> outputs;  // activations that the host reads afterwards
  std::size_t activation_bytes = 0;                        // size of the activation arena
  std::size_t activation_lower_bound = 0;                  // the largest live set
  std::size_t host_activation_bytes = 0;                   // size of the arena of what is offloaded meanwhile
  std::size_t workspace_bytes = 0;                         // the largest workspace of one instruction

  const BufferRef& output(const std::string& output_name) const;
  Cost cost() const;
  Cost cost(Phase phase) const;
};

// Scratch memory per operation, told by the device that will run it.
class WorkspaceSizes {
 public:
  virtual ~WorkspaceSizes() = default;
  virtual std::size_t workspace(const Op& op, Specs inputs, std::span<const TensorSpec> outputs) const = 0;
};

// Places the graph's values and flattens it. Every source and every gradient, weight and state must be in the layout.
// `outputs` names the graph's activation outputs, in order.
Program compile(const Graph& graph, const Layout& layout, const WorkspaceSizes& workspaces, std::string name,
                const std::vector<std::string>& outputs);

// The listing of `--print-program`.
std::string print(const Program& program);
// One line an operation kind: count, FLOPs, bytes.
std::string summarize(const Program& program);
// "1.50 GiB"
std::string human_bytes(std::size_t bytes);

}  // namespace convoy
