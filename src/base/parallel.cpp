#include "base/parallel.h"

#include <sched.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <exception>
#include <mutex>

namespace convoy {
namespace {

[[maybe_unused]] int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#ifdef _OPENMP
  return omp_get_num_procs();
#else
  return 1;
#endif
}

}  // namespace

#ifdef _OPENMP
void set_threads(int count) {
  omp_set_num_threads(count > 0 ? count : usable_cores());
}
int threads() {
  return omp_get_max_threads();
}
#else
// Without a pool (the fuzzers) everything runs on the calling thread.
void set_threads(int) {}
int threads() {
  return 1;
}
#endif

void parallel_for(std::int64_t n, const std::function<void(std::int64_t)>& body) {
  std::exception_ptr failure;
  std::int64_t failed_at = n;
  std::mutex lock;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1)
#endif
  for (std::int64_t i = 0; i < n; ++i) {
    try {
      body(i);
    } catch (...) {
      const std::lock_guard guard(lock);
      if (i < failed_at) {
        failed_at = i;
        failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace convoy
