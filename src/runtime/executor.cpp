#include "runtime/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "runtime/collectives.h"
#include "runtime/host_copies.h"

namespace convoy {
namespace {

std::vector<const TensorSpec*> specs_of(const std::vector<BufferRef>& refs) {
  std::vector<const TensorSpec*> specs;
  for (const BufferRef& ref : refs) specs.push_back(ref.present ? &ref.spec : nullptr);
  return specs;
}

}  // namespace

Executor::Executor(Device& device, const Program& program, const Arenas& arenas, Communicator* communicator)
    : device_(device), program_(program), arenas_(arenas), communicator_(communicator) {
  Collectives collectives(device, communicator);
  HostCopies host_copies(device);
  for (const Instruction& instruction : program.instructions) {
    Step step;
    std::vector<TensorSpec> outputs;
    for (const BufferRef& ref : instruction.outputs) outputs.push_back(ref.spec);
    const auto* collective = dynamic_cast<const CollectiveOp*>(instruction.op.get());
    has_collectives_ = has_collectives_ || collective != nullptr;
    const auto* host_copy = dynamic_cast<const HostCopyOp*>(instruction.op.get());
    const std::vector<const TensorSpec*> inputs = specs_of(instruction.inputs);
    step.kernel = collective != nullptr  ? collectives.prepare(*collective, inputs, outputs)
                  : host_copy != nullptr ? host_copies.prepare(*host_copy, outputs)
                                         : device.prepare(*instruction.op, inputs, outputs);
    step.inputs.resize(instruction.inputs.size());
    step.outputs.resize(instruction.outputs.size());
    for (const auto* refs : {&instruction.inputs, &instruction.outputs}) {
      for (const BufferRef& ref : *refs) {
        if (!ref.present) continue;
        std::size_t& mark = high_water_[static_cast<std::size_t>(ref.arena)];
        mark = std::max(mark, ref.offset + ref.spec.bytes());
      }
    }
    workspace_high_water_ = std::max(workspace_high_water_, instruction.workspace);
    steps_.push_back(std::move(step));
  }
  for (std::size_t role = 0; role < high_water_.size(); ++role) {
    if (high_water_[role] > arenas.sizes().bytes[role]) {
      throw internal_error(fmt::format("program {} needs {} bytes of {}, its arena has {}", program.name,
                                       high_water_[role], name_of(static_cast<Role>(role)),
                                       arenas.sizes().bytes[role]));
    }
  }
  check(workspace_high_water_ <= arenas.sizes().workspace, "a program needs more workspace than its arena has");
}

void Executor::bind(std::size_t gradient_slot) {
  if (gradient_slot == bound_slot_) return;
  bound_slot_ = gradient_slot;
  const auto resolve = [&](const BufferRef& ref) -> std::byte* {
    return ref.present ? arenas_.base(ref.arena, gradient_slot) + ref.offset : nullptr;
  };
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    std::transform(instruction.inputs.begin(), instruction.inputs.end(), steps_[i].inputs.begin(), resolve);
    std::transform(instruction.outputs.begin(), instruction.outputs.end(), steps_[i].outputs.begin(), resolve);
  }
}

void Executor::run(std::size_t gradient_slot) {
  bind(gradient_slot);
  if (observed() || has_collectives_ || !recordable_) return run_steps();
  const std::pair key{gradient_slot, device_.recording_variant()};
  const auto [place, first] = recordings_.try_emplace(key);
  if (first) return run_steps();
  if (!place->second) place->second = device_.record([this] { run_steps(); });
  recordable_ = place->second != nullptr;
  recordable_ ? place->second->replay() : run_steps();
}

void Executor::run_steps() {
  const bool observe = observed();
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    if (communicator_ != nullptr) communicator_->progress();
    if (observe) {
      run_observed(i);
    } else {
      step.kernel->run({step.inputs, step.outputs, arenas_.workspace()});
    }
  }
}

void Executor::run_observed(std::size_t index) {
  Step& step = steps_[index];
  const Instruction& instruction = program_.instructions[index];
  const auto begin = Trace::Clock::now();
  step.kernel->run({step.inputs, step.outputs, arenas_.workspace()});
  device_.synchronize();
  const auto end = Trace::Clock::now();
  const double seconds = std::chrono::duration<double>(end - begin).count();
  if (profiling_) profile_[std::string(instruction.op->name())] += seconds;
  if (trace_ != nullptr)
    trace_->add(Trace::Lane::kCompute, instruction.op->name(), name_of(instruction.phase), begin, end);
  if (!timing_on_) return;
  if (dynamic_cast<const CollectiveOp*>(instruction.op.get()) != nullptr ||
      dynamic_cast<const HostCopyOp*>(instruction.op.get()) != nullptr) {
    timing_.waiting += seconds;
    return;
  }
  double* const by_phase[] = {&timing_.forward, &timing_.backward, &timing_.recompute, &timing_.update};
  *by_phase[static_cast<std::size_t>(instruction.phase)] += seconds;
}

}  // namespace convoy
