// The one compute pool: libgomp's team. Threads that only read, write or communicate are plain std::thread and never
// enter a parallel region.
#pragma once

#include <cstdint>
#include <functional>

namespace convoy {

// Threads of the compute pool (`--threads`); 0 = the cores this process may run on.
void set_threads(int count);
int threads();

// Runs body(i) for i in 0…n-1 on the pool. The work of one i never depends on the number of threads, so neither do the
// results. An exception thrown by a body is rethrown here (the one with the lowest i).
void parallel_for(std::int64_t n, const std::function<void(std::int64_t)>& body);

}  // namespace convoy
