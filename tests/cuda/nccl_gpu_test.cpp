// The NCCL communicator with NCCL itself. Everything runs in processes of its own: CUDA does not survive a fork.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "base/error.h"
#include "comm/tree_sum.h"
#include "cuda/choose_communicator.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_lane.h"
#include "support/ranks.h"

namespace convoy {
namespace {

const std::string kSkipped = "skipped: ";

// Values from -1 to 1 in the given type, which differ with the seed.
std::vector<std::byte> values_of(DType dtype, std::int64_t count, unsigned seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_of(dtype));
  std::mt19937 draw(seed);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const double value = static_cast<double>(draw()) / 2147483648.0 - 1;
    if (dtype == DType::kF64) reinterpret_cast<double*>(bytes.data())[i] = value;
    if (dtype == DType::kF32) reinterpret_cast<float*>(bytes.data())[i] = static_cast<float>(value);
    if (dtype == DType::kBF16) reinterpret_cast<BF16*>(bytes.data())[i] = to_bf16(static_cast<float>(value));
    if (dtype == DType::kF16) reinterpret_cast<F16*>(bytes.data())[i] = to_f16(static_cast<float>(value));
  }
  return bytes;
}

std::vector<std::byte> sum_of(DType dtype, int ranks, std::int64_t count, unsigned seed) {
  std::vector<std::vector<std::byte>> all;
  std::vector<const std::byte*> operands;
  for (int r = 0; r < ranks; ++r) all.push_back(values_of(dtype, count, seed + static_cast<unsigned>(r)));
  for (const auto& each : all) operands.push_back(each.data());
  std::vector<std::byte> sum(all[0].size());
  tree_sum(dtype, operands, sum.data(), count);
  return sum;
}

// Tensors in the GPU's memory.
class Tensors {
 public:
  explicit Tensors(CudaDevice& device) : device_(device) {}
  std::byte* put(const std::vector<std::byte>& bytes) {
    memory_.push_back(device_.allocate(bytes.size() + 16));
    device_.copy_in(memory_.back()->data(), bytes);
    return memory_.back()->data();
  }
  std::string differs(const char* what, const std::byte* at, const std::vector<std::byte>& wanted) {
    std::vector<std::byte> got(wanted.size());
    device_.copy_out(got, at);
    return got == wanted ? "" : std::string(what) + " differs; ";
  }

 private:
  CudaDevice& device_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
};

// All operations, among as many GPUs as the communicator has ranks.
std::string all_operations(CudaDevice& device, Communicator& c) {
  std::string wrong;
  const int ranks = c.size();
  const auto own = static_cast<unsigned>(c.rank());
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    for (const std::int64_t count :
         {std::int64_t{1}, std::int64_t{1000}, std::int64_t{4096}, std::int64_t{300'001}, std::int64_t{20'000'000}}) {
      Tensors tensors(device);
      const std::size_t element = size_of(dtype);
      const ShardCut cut = cut_evenly(count, 64, ranks);
      const std::vector<std::byte> given = values_of(dtype, count, own);
      const std::vector<std::byte> sum = sum_of(dtype, ranks, count, 0);
      const std::vector<std::byte> empty(given.size());
      std::byte* full = tensors.put(given);
      std::byte* shard = tensors.put(empty);
      std::byte* all = tensors.put(empty);
      std::byte* reduced = tensors.put(given);
      const ScatterPiece scatter{full, shard, cut};
      const GatherPiece gather{shard, all, cut};
      const ReducePiece reduce{reduced, count};
      c.reduce_scatter(dtype, std::span(&scatter, 1));
      const Communicator::Ticket one = c.start_all_gather(dtype, std::span(&gather, 1));
      const Communicator::Ticket two = c.start_all_reduce(dtype, std::span(&reduce, 1));
      c.wait(two);
      c.wait(one);
      const auto begin = static_cast<std::ptrdiff_t>(cut.begin(c.rank())) * static_cast<std::ptrdiff_t>(element);
      const auto length = static_cast<std::ptrdiff_t>(cut.length(c.rank())) * static_cast<std::ptrdiff_t>(element);
      wrong += tensors.differs("shard", shard, {sum.begin() + begin, sum.begin() + begin + length});
      wrong += tensors.differs("all-gather", all, sum);
      wrong += tensors.differs("all-reduce", reduced, sum);
      wrong += tensors.differs("what was given", full, given);
    }
  }
  if (c.name() != "nccl") return wrong;  // the others carry messages in host memory alone
  Tensors tensors(device);
  const std::size_t block = 40'000;
  std::vector<std::byte> out, wanted;
  for (int d = 0; d < ranks; ++d) {
    const auto sent = values_of(DType::kF32, 10'000, own * 100 + static_cast<unsigned>(d));
    const auto got = values_of(DType::kF32, 10'000, static_cast<unsigned>(d) * 100 + own);
    out.insert(out.end(), sent.begin(), sent.end());
    wanted.insert(wanted.end(), got.begin(), got.end());
  }
  std::byte* send = tensors.put(out);
  std::byte* receive = tensors.put(std::vector<std::byte>(out.size()));
  c.all_to_all({send, out.size()}, {receive, out.size()});
  wrong += tensors.differs("all-to-all", receive, wanted);
  c.broadcast({send, block}, ranks - 1);
  wrong += tensors.differs("broadcast", send, values_of(DType::kF32, 10'000, static_cast<unsigned>(ranks - 1) * 100));
  if (ranks > 1) {
    if (c.rank() == 0) c.send({receive, block}, 1);
    if (c.rank() == 1) {
      c.receive({receive, block}, 0);
      wrong += tensors.differs("message", receive, values_of(DType::kF32, 10'000, 0));
    }
  }
  double value = own;
  const ReducePiece on_host{reinterpret_cast<std::byte*>(&value), 1};
  c.all_reduce(DType::kF64, std::span(&on_host, 1));
  if (value != ranks * (ranks - 1) / 2.0) wrong += "host memory differs; ";
  return wrong;
}

// Each rank's text; where they say so, the test is skipped.
void on_ranks(int ranks, const std::function<std::string(Communicator&)>& body, const std::string& wanted) {
  for (const std::string& text : testing::run_healthy_ranks(ranks, body)) {
    if (text.rfind(kSkipped, 0) == 0) GTEST_SKIP() << text.substr(kSkipped.size());
    EXPECT_EQ(text, wanted);
  }
}

std::string through_nccl(Communicator& host, int gpus, bool deterministic) {
  if (cuda_device_count() < gpus) return kSkipped + "fewer than " + std::to_string(gpus) + " GPUs here";
  const NcclFound found = find_nccl();
  if (!found.api) return kSkipped + found.reason;
  CudaDevice::Options options;
  options.ordinal = host.rank();
  CudaDevice device(options);
  std::unique_ptr<Communicator> own = host.split(0);
  const NcclOutcome made = make_nccl_communicator(found, make_cuda_lane(device), own, {30, deterministic});
  if (!made.communicator) return "no communicator: " + made.reason;
  return all_operations(device, *made.communicator);
}

TEST(NcclGpu, OneRankDoesAllOperations) {
  for (const bool deterministic : {true, false})
    on_ranks(
        1, [&](Communicator& host) { return through_nccl(host, 1, deterministic); }, "");
}

TEST(NcclGpu, TwoAndFourRanksDoAllOperationsByTheTree) {
  for (const int ranks : {2, 4})
    on_ranks(
        ranks, [&](Communicator& host) { return through_nccl(host, ranks, true); }, "");
}

TEST(NcclGpu, RanksOnOneGpuAreRefusedAndAutoTakesIpc) {
  on_ranks(
      2,
      [](Communicator& host) -> std::string {
        if (cuda_device_count() == 0) return kSkipped + "no GPU here";
        if (const NcclFound found = find_nccl(); !found.api) return kSkipped + found.reason;
        CudaDevice device;  // the first GPU for both
        std::unique_ptr<Communicator> own = host.split(0);
        std::string said;
        try {
          own = choose_gpu_communicator(device, own, "nccl", {});
          said = own->name();
        } catch (const Error& error) {
          const std::string text = error.what();
          said = text.find("ranks 0 and 1 are on one GPU") != std::string::npos ? "refused" : text;
        }
        own = choose_gpu_communicator(device, own, "auto", {});
        said += ", then " + own->name() + " " + all_operations(device, *own);
        return said;
      },
      "refused, then cuda-ipc ");
}

TEST(NcclGpu, RanksThatWantDifferentKindsAreTold) {
  on_ranks(
      2,
      [](Communicator& host) -> std::string {
        if (cuda_device_count() == 0) return kSkipped + "no GPU here";
        CudaDevice device;
        std::unique_ptr<Communicator> own = host.split(0);
        try {
          own = choose_gpu_communicator(device, own, host.rank() == 0 ? "auto" : "host", {});
        } catch (const Error& error) {
          return error.what();
        }
        return own->name();
      },
      "rank 1 was started with another `gpu_communicator` than rank 0; give all ranks the same settings");
}

TEST(NcclGpu, SumsOfManyOperandsAreTheTrees) {
  on_ranks(
      1,
      [](Communicator&) -> std::string {
        if (cuda_device_count() == 0) return kSkipped + "no GPU here";
        CudaDevice device;
        const std::unique_ptr<GpuLane> lane = make_cuda_lane(device);
        std::string wrong;
        for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
          for (const int ranks : {1, 2, 7, 16, 17, 24, 31, 64, 255, 256}) {
            const std::int64_t count = 1003;
            Tensors tensors(device);
            std::vector<const std::byte*> operands;
            for (int r = 0; r < ranks; ++r)
              operands.push_back(tensors.put(values_of(dtype, count, static_cast<unsigned>(r))));
            std::byte* out = tensors.put(std::vector<std::byte>(static_cast<std::size_t>(count) * size_of(dtype)));
            device.synchronize();
            lane->enter();
            lane->sum(dtype, operands, out, count);
            lane->record();
            while (!lane->done()) {
            }
            wrong += tensors.differs(std::to_string(ranks).c_str(), out, sum_of(dtype, ranks, count, 0));
          }
        }
        return wrong;
      },
      "");
}

}  // namespace
}  // namespace convoy
