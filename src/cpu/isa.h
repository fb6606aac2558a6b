// Which instruction set the CPU kernels use. Chosen once from what the processor offers.
#pragma once

namespace convoy::cpu {

enum class Isa { kBase, kAvx2, kAvx512 };

// The best instruction set of this processor, not above the limit.
Isa active_isa();
// Lowers the limit; for tests of the slower paths. Call before any kernel is prepared.
void set_isa_limit(Isa limit);
const char* name_of(Isa isa);

// Picks one of three equal functions. Off x86 all three are the base one.
template <typename F>
F pick(F base, F avx2, F avx512) {
  switch (active_isa()) {
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx2:
      return avx2;
    case Isa::kBase:
      break;
  }
  return base;
}

}  // namespace convoy::cpu
