#include "cpu/isa.h"

namespace convoy::cpu {
namespace {

Isa detect() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd")) {
    return Isa::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    return Isa::kAvx2;
#endif
  return Isa::kBase;
}

Isa limit = Isa::kAvx512;

}  // namespace

Isa active_isa() {
  static const Isa detected = detect();
  return detected < limit ? detected : limit;
}

void set_isa_limit(Isa new_limit) {
  limit = new_limit;
}

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kBase:
      return "base";
  }
  return "?";
}

}  // namespace convoy::cpu
