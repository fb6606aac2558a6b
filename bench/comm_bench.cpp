// Collective operations of two ranks on this host: median milliseconds, or microseconds for the small one.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "comm/communicator.h"

namespace {

using convoy::Communicator;

double median_seconds(Communicator& c, int repeats, const std::function<void()>& operation) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    c.barrier();
    const auto begin = std::chrono::steady_clock::now();
    operation();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<std::size_t>(repeats / 2)];
}

void measure(Communicator& c) {
  const std::int64_t count = std::int64_t{16} << 20;  // 64 MiB of f32
  std::vector<float> data(static_cast<std::size_t>(count), 1.0F);
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  const convoy::ShardCut cut = convoy::cut_evenly(count, 64, c.size());
  std::byte* mine = bytes + cut.begin(c.rank()) * 4;
  const convoy::ReducePiece reduce{bytes, count};
  const convoy::ReducePiece small{bytes, 1024};
  const convoy::ScatterPiece scatter{bytes, mine, cut};
  const convoy::GatherPiece gather{mine, bytes, cut};
  const auto f32 = convoy::DType::kF32;
  const double all_reduce = median_seconds(c, 15, [&] { c.all_reduce(f32, std::span(&reduce, 1)); });
  const double reduce_scatter = median_seconds(c, 15, [&] { c.reduce_scatter(f32, std::span(&scatter, 1)); });
  const double all_gather = median_seconds(c, 15, [&] { c.all_gather(f32, std::span(&gather, 1)); });
  const double latency = median_seconds(c, 2001, [&] { c.all_reduce(f32, std::span(&small, 1)); });
  if (c.rank() != 0) return;
  fmt::print("{:<8} {:>2} ranks: all-reduce 64 MiB {:7.2f} ms, reduce-scatter {:7.2f} ms, all-gather {:7.2f} ms, ",
             c.name(), c.size(), all_reduce * 1e3, reduce_scatter * 1e3, all_gather * 1e3);
  fmt::print("all-reduce 4 KiB {:7.2f} us\n", latency * 1e6);
}

void be_rank(int rank, int ranks, pid_t parent, int gloo_port) {
  convoy::CommunicatorOptions options;
  options.rank = options.local_rank = rank;
  options.size = options.local_size = ranks;
  options.job = fmt::format("bench-{}", parent);
  options.token = options.job;
  if (gloo_port > 0) {  // as if each rank were on a host of its own
    options.local_rank = 0;
    options.local_size = 1;
    options.master_port = gloo_port;
    options.serve_rendezvous = rank == 0;
  }
  measure(*convoy::connect(options));
}

}  // namespace

// comm_bench [ranks [port]]: through shared memory, or, with a free port for the rendezvous, through Gloo on loopback.
int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int port = argc > 2 ? std::atoi(argv[2]) : 0;
  const pid_t parent = ::getpid();
  for (int r = 1; r < ranks; ++r) {
    if (::fork() != 0) continue;
    be_rank(r, ranks, parent, port);
    return 0;
  }
  be_rank(0, ranks, parent, port);
  while (::wait(nullptr) > 0) {
  }
  return 0;
}
