#include "plan/model_flops.h"

namespace convoy {

double model_flops(const Program& micro) {
  double flops = 0;
  for (const Instruction& instruction : micro.instructions) {
    if (instruction.phase != Phase::kRecompute) flops += instruction.cost.flops;
  }
  return flops;
}

}  // namespace convoy
