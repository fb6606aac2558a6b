// The collective operations of comm_bench through MPI, for comparison: mpirun -np 2 mpi_bench
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

namespace {

double median_seconds(int repeats, const std::function<void()>& operation) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    operation();
    seconds.push_back(MPI_Wtime() - begin);
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<std::size_t>(repeats / 2)];
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int count = 16 << 20, part = count / ranks;  // 64 MiB of f32
  std::vector<float> data(static_cast<std::size_t>(count), 1.0F), shard(static_cast<std::size_t>(part));
  const double all_reduce =
      median_seconds(15, [&] { MPI_Allreduce(MPI_IN_PLACE, data.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
  const double reduce_scatter = median_seconds(
      15, [&] { MPI_Reduce_scatter_block(data.data(), shard.data(), part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
  const double all_gather = median_seconds(
      15, [&] { MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data.data(), part, MPI_FLOAT, MPI_COMM_WORLD); });
  const double latency =
      median_seconds(2001, [&] { MPI_Allreduce(MPI_IN_PLACE, data.data(), 1024, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
  if (rank == 0) {
    std::printf("%-8s %2d ranks: all-reduce 64 MiB %7.2f ms, reduce-scatter %7.2f ms, all-gather %7.2f ms, ", "mpi",
                ranks, all_reduce * 1e3, reduce_scatter * 1e3, all_gather * 1e3);
    std::printf("all-reduce 4 KiB %7.2f us\n", latency * 1e6);
  }
  MPI_Finalize();
  return 0;
}
