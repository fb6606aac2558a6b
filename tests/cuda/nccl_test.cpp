// The NCCL communicator's logic, with a library and "GPUs" that stand for NCCL and CUDA: it needs no GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "base/error.h"
#include "cuda/host_lane.h"
#include "cuda/nccl_api.h"
#include "cuda/nccl_communicator.h"
#include "support/ranks.h"

namespace convoy {
namespace {

using testing::HostLane;
using testing::RankResult;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int aborts() {
  void* library = ::dlopen(CONVOY_FAKE_NCCL, RTLD_NOW | RTLD_NOLOAD);
  const auto count = reinterpret_cast<int (*)()>(library == nullptr ? nullptr : ::dlsym(library, "fake_nccl_aborts"));
  return count == nullptr ? -1 : count();
}

// The tests of real GPUs in this program look for the machine's own library: the variable is set for this call alone.
NcclFound find_at(const char* library) {
  const char* const old = std::getenv("CONVOY_NCCL_LIBRARY");
  const std::string before = old == nullptr ? "" : old;
  ::setenv("CONVOY_NCCL_LIBRARY", library, 1);
  NcclFound found = find_nccl();
  old == nullptr ? ::unsetenv("CONVOY_NCCL_LIBRARY") : ::setenv("CONVOY_NCCL_LIBRARY", before.c_str(), 1);
  return found;
}
NcclFound fake() {
  return find_at(CONVOY_FAKE_NCCL);
}

std::vector<std::byte> values_of(DType dtype, int rank, std::int64_t count, int seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_of(dtype));
  std::uint64_t state = 0x9e3779b97f4a7c15ULL * static_cast<std::uint64_t>(rank * 1000 + seed + 1);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const double value = static_cast<double>(static_cast<std::int64_t>(state >> 33)) / 1e8 - 10;
    if (dtype == DType::kF64) reinterpret_cast<double*>(bytes.data())[i] = value;
    if (dtype == DType::kF32) reinterpret_cast<float*>(bytes.data())[i] = static_cast<float>(value);
    if (dtype == DType::kBF16) reinterpret_cast<BF16*>(bytes.data())[i] = to_bf16(static_cast<float>(value));
    if (dtype == DType::kF16) reinterpret_cast<F16*>(bytes.data())[i] = to_f16(static_cast<float>(value));
  }
  return bytes;
}

// By the tree, or from rank 0 upwards as the stand-in for NCCL adds.
std::vector<std::byte> sum_of(DType dtype, int ranks, std::int64_t count, int seed, bool tree) {
  std::vector<std::vector<std::byte>> all;
  for (int r = 0; r < ranks; ++r) all.push_back(values_of(dtype, r, count, seed));
  std::vector<std::byte> sum = all[0];
  if (tree) {
    std::vector<const std::byte*> operands;
    for (const auto& each : all) operands.push_back(each.data());
    tree_sum(dtype, operands, sum.data(), count);
  } else {
    for (int r = 1; r < ranks; ++r) {
      const std::vector<const std::byte*> two = {sum.data(), all[static_cast<std::size_t>(r)].data()};
      tree_sum(dtype, two, sum.data(), count);
    }
  }
  return sum;
}

std::string compare(const std::string& what, std::span<const std::byte> got, std::span<const std::byte> wanted) {
  return std::ranges::equal(got, wanted) ? "" : what + " differs; ";
}

// A communicator over the stand-ins, and the lane's memory.
struct Joined {
  explicit Joined(Communicator& host, const NcclOptions& options = {}, const std::string& gpu = "") {
    // The tests' group is not theirs to give away: one of its own.
    std::unique_ptr<Communicator> own = host.split(0);
    auto made = std::make_unique<HostLane>(gpu.empty() ? "GPU-" + std::to_string(host.rank()) : gpu);
    lane = made.get();
    outcome = make_nccl_communicator(fake(), std::move(made), own, options);
    left = std::move(own);
  }
  Communicator& operator*() const {
    if (outcome.communicator == nullptr) throw usage_error("no communicator: " + outcome.reason);
    return *outcome.communicator;
  }
  // Memory of the "GPU".
  std::vector<std::byte>& memory(std::vector<std::byte>& bytes) const {
    lane->own(bytes);
    return bytes;
  }
  HostLane* lane = nullptr;
  std::unique_ptr<Communicator> left;
  NcclOutcome outcome;
};

// Sizes around what is summed whole, the cuts' units, and (with 2 ranks and more) a region of scratch.
const std::vector<std::int64_t> kCounts = {0, 1, 7, 1000, 4097, 300'001, 400'003};

std::string sums_and_gathers(Communicator& host, bool deterministic) {
  Joined joined(host, {20, deterministic, std::size_t{1} << 18});  // several rounds
  Communicator& c = *joined;
  const int ranks = c.size();
  std::string wrong;
  std::vector<DType> dtypes = {DType::kF32, DType::kF64};
  if (deterministic) dtypes.insert(dtypes.end(), {DType::kBF16, DType::kF16});
  for (const DType dtype : dtypes) {
    std::vector<std::vector<std::byte>> full, shards, gathered, reduced;
    std::vector<ScatterPiece> scatter;
    std::vector<GatherPiece> gather;
    std::vector<ReducePiece> reduce;
    for (std::int64_t count : kCounts) {
      if (dtype == DType::kF64 && count > 400'000) count = 1 << 18;  // all shards alike
      const ShardCut cut = cut_evenly(count, 64, ranks);
      full.push_back(values_of(dtype, c.rank(), count, 2));
      shards.emplace_back(static_cast<std::size_t>(cut.length(c.rank())) * size_of(dtype));
      gathered.emplace_back(full.back().size());
      reduced.push_back(values_of(dtype, c.rank(), count, 3));
      scatter.push_back({joined.memory(full.back()).data(), joined.memory(shards.back()).data(), cut});
      gather.push_back({shards.back().data(), joined.memory(gathered.back()).data(), cut});
      reduce.push_back({joined.memory(reduced.back()).data(), count});
    }
    c.reduce_scatter(dtype, scatter);
    c.all_gather(dtype, gather);
    c.all_reduce(dtype, reduce);
    const std::span small = std::span(reduce).subspan(1, 3);  // summed whole
    const Communicator::Ticket ticket = c.start_all_reduce(dtype, small);
    c.wait(ticket);
    for (std::size_t i = 0; i < full.size(); ++i) {
      const std::int64_t count = scatter[i].cut.numel;
      const std::string what = std::string(name_of(dtype)) + " " + std::to_string(count);
      const std::vector<std::byte> sum = sum_of(dtype, ranks, count, 2, deterministic);
      const auto begin = static_cast<std::size_t>(scatter[i].cut.begin(c.rank())) * size_of(dtype);
      wrong +=
          compare("shard " + what, shards[i], std::span(sum).subspan(std::min(begin, sum.size()), shards[i].size()));
      wrong += compare("gathered " + what, gathered[i], sum);
      std::vector<std::byte> whole = sum_of(dtype, ranks, count, 3, deterministic);
      if (i >= 1 && i <= 3) {  // twice
        const std::vector<const std::byte*> copies(static_cast<std::size_t>(ranks), whole.data());
        std::vector<std::byte> twice = whole;
        for (int r = 1; r < ranks && !deterministic; ++r) {
          const std::vector<const std::byte*> two = {twice.data(), whole.data()};
          tree_sum(dtype, two, twice.data(), count);
        }
        if (deterministic) tree_sum(dtype, copies, twice.data(), count);
        whole = twice;
      }
      wrong += compare("all-reduce " + what, reduced[i], whole);
    }
  }
  return wrong;
}

TEST(Nccl, SumsByTheTreeAreTheHostsBits) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::string& wrong :
         testing::run_healthy_ranks(ranks, [](Communicator& host) { return sums_and_gathers(host, true); }))
      EXPECT_EQ(wrong, "") << ranks;
  }
}

TEST(Nccl, OtherwiseTheLibraryAdds) {
  for (const int ranks : {1, 3, 4}) {
    for (const std::string& wrong :
         testing::run_healthy_ranks(ranks, [](Communicator& host) { return sums_and_gathers(host, false); }))
      EXPECT_EQ(wrong, "") << ranks;
  }
}

TEST(Nccl, OperationsThatEnterTheStreamLateAreWaitedFor) {
  for (const std::string& wrong : testing::run_healthy_ranks(2, [](Communicator& host) {
         ::setenv("FAKE_NCCL", "late", 1);
         return sums_and_gathers(host, true);
       }))
    EXPECT_EQ(wrong, "");
}

TEST(Nccl, InPlaceFormsAndTraffic) {
  for (const std::string& wrong : testing::run_healthy_ranks(4, [](Communicator& host) {
         Joined joined(host);
         Communicator& c = *joined;
         const std::int64_t count = 64 * 1024;
         const ShardCut cut = cut_evenly(count, 64, 4);
         std::vector<std::byte> data = values_of(DType::kF32, c.rank(), count, 4);
         std::byte* mine = joined.memory(data).data() + cut.begin(c.rank()) * 4;
         const ScatterPiece scatter{data.data(), mine, cut};
         const GatherPiece gather{mine, data.data(), cut};
         c.reduce_scatter(DType::kF32, std::span(&scatter, 1));
         const auto other = static_cast<std::size_t>(cut.begin((c.rank() + 1) % 4)) * 4;
         const std::vector<std::byte> before = values_of(DType::kF32, c.rank(), count, 4);
         std::string found =
             compare("the rest", std::span(data).subspan(other, 64), std::span(before).subspan(other, 64));
         c.all_gather(DType::kF32, std::span(&gather, 1));
         found += compare("in place", data, sum_of(DType::kF32, 4, count, 4, true));
         const ReducePiece reduce{data.data(), count};
         c.all_reduce(DType::kF32, std::span(&reduce, 1));
         const std::uint64_t whole = static_cast<std::uint64_t>(count) * 4;
         const Traffic& t = c.traffic();
         if (t.reduce_scatter != whole * 3 / 4 || t.all_gather != whole * 3 / 4 || t.all_reduce != 2 * whole * 3 / 4)
           found += "traffic";
         return found;
       }))
    EXPECT_EQ(wrong, "");
}

TEST(Nccl, OtherOperationsOnBothMemories) {
  for (const std::string& wrong : testing::run_healthy_ranks(3, [](Communicator& host) {
         Joined joined(host);
         Communicator& c = *joined;
         std::string found;
         for (const bool on_gpu : {true, false}) {
           joined.lane->forget_memory();  // the addresses come again
           const auto place = [&](std::vector<std::byte>& bytes) {
             if (on_gpu) joined.memory(bytes);
           };
           std::vector<std::byte> data = values_of(DType::kF32, c.rank(), 100'000, 7);
           place(data);
           c.broadcast(data, 2);
           found += compare("broadcast", data, values_of(DType::kF32, 2, 100'000, 7));
           std::vector<std::byte> out, in, wanted;
           for (int d = 0; d < 3; ++d) {
             const auto block = values_of(DType::kF32, c.rank(), 5000, d);
             const auto theirs = values_of(DType::kF32, d, 5000, c.rank());
             out.insert(out.end(), block.begin(), block.end());
             wanted.insert(wanted.end(), theirs.begin(), theirs.end());
           }
           in.resize(out.size());
           place(out);
           place(in);
           c.all_to_all(out, in);
           found += compare("all-to-all", in, wanted);
           std::vector<std::byte> mine = values_of(DType::kF32, c.rank(), 30'000, 8), got(mine.size());
           place(mine);
           place(got);
           if (c.rank() == 0) c.send(mine, 1);
           if (c.rank() == 1) c.receive(got, 0);
           if (c.rank() == 1) found += compare("message", got, values_of(DType::kF32, 0, 30'000, 8));
           c.barrier();
         }
         return found;
       }))
    EXPECT_EQ(wrong, "");
}

TEST(Nccl, GroupsJoinWhenTheyMeetTheGpu) {
  EXPECT_EQ(testing::run_healthy_ranks(4,
                                       [](Communicator& host) {
                                         Joined joined(host);
                                         const std::unique_ptr<Communicator> group =
                                             (*joined).split((*joined).rank() % 2);
                                         std::vector<std::byte> value(8);
                                         const double own = host.rank();
                                         std::memcpy(value.data(), &own, 8);
                                         const ReducePiece piece{joined.memory(value).data(), 1};
                                         group->all_reduce(DType::kF64, std::span(&piece, 1));
                                         double sum = 0;
                                         std::memcpy(&sum, value.data(), 8);
                                         return std::to_string(group->rank()) + "/" + std::to_string(group->size()) +
                                                " " + std::to_string(static_cast<int>(sum)) + " " + group->name();
                                       }),
            (std::vector<std::string>{"0/2 2 nccl", "0/2 4 nccl", "1/2 2 nccl", "1/2 4 nccl"}));
}

// What a communicator that does not come about says, the same on all ranks, and that the host's group is still there.
std::vector<std::string> refusals(
    int ranks, const std::function<void(Communicator&)>& prepare,
    const std::function<std::string(int)>& gpu = [](int) { return ""; }, double timeout = 20) {
  return testing::run_healthy_ranks(ranks, [&](Communicator& host) {
    prepare(host);
    const Joined joined(host, {timeout, true}, gpu(host.rank()));
    if (joined.outcome.communicator || !joined.left) return std::string("joined");
    joined.left->barrier();
    return joined.outcome.reason;
  });
}

TEST(Nccl, TwoRanksOnOneGpuAreRefused) {
  for (const std::string& reason : refusals(
           3, [](Communicator&) {}, [](int rank) { return rank == 1 ? "GPU-b" : "GPU-a"; }))
    EXPECT_EQ(reason, "ranks 0 and 2 are on one GPU (GPU-a), and NCCL wants one for each");
}

TEST(Nccl, ALibraryThatDoesNotServeIsAWordAndNoCrash) {
  NcclFound found = find_at("/nowhere/libnccl.so.2");
  EXPECT_EQ(found.api, nullptr);
  EXPECT_NE(found.reason.find("cannot open NCCL"), std::string::npos) << found.reason;
  EXPECT_NE(found.reason.find("CONVOY_NCCL_LIBRARY"), std::string::npos) << found.reason;
  found = find_at(CONVOY_FAKE_NCCL_WITHOUT_FINALIZE);
  EXPECT_EQ(found.api, nullptr);
  EXPECT_NE(found.reason.find("this NCCL has no ncclCommFinalize"), std::string::npos) << found.reason;
  ::setenv("FAKE_NCCL", "version=21000", 1);
  found = fake();
  EXPECT_EQ(found.api, nullptr);
  EXPECT_NE(found.reason.find("NCCL 2.10.0 is too old"), std::string::npos) << found.reason;
  ::unsetenv("FAKE_NCCL");
  found = fake();
  ASSERT_NE(found.api, nullptr) << found.reason;
  EXPECT_EQ(found.api->version, NCCL_VERSION_CODE);
}

TEST(Nccl, WhereOneRankHasNoneThereIsNoneForAll) {
  for (const std::string& reason : refusals(3, [](Communicator& host) {
         if (host.rank() == 1) ::setenv("FAKE_NCCL", "version=21000", 1);
       }))
    EXPECT_EQ(reason.rfind("rank 1: NCCL 2.10.0 is too old", 0), 0U) << reason;
  for (const std::string& reason : refusals(2, [](Communicator& host) {
         if (host.rank() == 1) ::setenv("FAKE_NCCL", "version=22700", 1);
       }))
    EXPECT_EQ(reason, "rank 0 has NCCL " + nccl_version_text(NCCL_VERSION_CODE) + " and rank 1 has 2.27.0");
}

TEST(Nccl, JoiningThatFailsLeavesTheHostsGroup) {
  for (const std::string& reason : refusals(2, [](Communicator&) { ::setenv("FAKE_NCCL", "fail-id", 1); }))
    EXPECT_EQ(reason, "NCCL: making an id failed: some failure (the script says so)");
  const auto begin = Clock::now();
  for (const std::string& reason : refusals(
           2,
           [](Communicator& host) {
             if (host.rank() == 1) ::setenv("FAKE_NCCL", "fail-join", 1);
           },
           [](int) { return ""; }, 1))
    EXPECT_NE(reason.find("NCCL: joining"), std::string::npos) << reason;
  for (const std::string& reason : refusals(
           2,
           [](Communicator& host) {
             if (host.rank() == 1) ::setenv("FAKE_NCCL", "never-join", 1);
           },
           [](int) { return ""; }, 1))
    EXPECT_NE(reason.find("NCCL: joining has not ended"), std::string::npos) << reason;
  EXPECT_LT(seconds_since(begin), 20);
}

// The groups of operations before the first sum, which takes two: blocks are exchanged, and sums gathered.
constexpr int kFirst = 2;

std::string sum_for_ever(Joined& joined, const std::function<void(int)>& before) {
  Communicator& c = *joined;
  std::vector<std::byte> data = values_of(DType::kF32, c.rank(), 500'000, 1);
  const ReducePiece piece{joined.memory(data).data(), 500'000};
  const auto begin = Clock::now();
  std::string failure;
  try {
    for (int i = 0; i < 1000; ++i) {
      before(i);
      c.all_reduce(DType::kF32, std::span(&piece, 1));
    }
    failure = "none";
  } catch (const Error& error) {
    failure = std::to_string(static_cast<int>(error.status())) + " " + error.what();
  }
  // What follows fails too, at once.
  std::string again = "; no second failure";
  try {
    c.all_reduce(DType::kF32, std::span(&piece, 1));
  } catch (const Error&) {
    again = "";
  }
  return (seconds_since(begin) < 10 ? "soon " : "late ") + failure + again + (aborts() == 1 ? "" : "; not aborted");
}

TEST(Nccl, ARankThatDiesInATransferIsNamed) {
  const std::vector<RankResult> results = testing::run_ranks(3, [](Communicator& host) {
    // Nothing moves after some operations, as when a peer is gone; the library tells nothing.
    ::setenv("FAKE_NCCL", ("hang-after=" + std::to_string(kFirst + 8)).c_str(), 1);
    Joined joined(host);
    std::thread killer;
    if (host.rank() == 1) {
      killer = std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        ::kill(::getpid(), SIGKILL);
      });
    }
    return sum_for_ever(joined, [](int) {});
  });
  for (const std::size_t r : {0, 2})
    EXPECT_EQ(results[r].value.rfind("soon 138 rank 1 died", 0), 0U) << results[r].value << results[r].failure;
  for (const std::size_t r : {0, 2})
    EXPECT_EQ(results[r].value.find(';'), results[r].value.rfind("; ")) << results[r].value;
}

TEST(Nccl, ATransferThatStandsStillEndsAfterTheTimeout) {
  for (const RankResult& result : testing::run_ranks(2, [](Communicator& host) {
         ::setenv("FAKE_NCCL", ("hang-after=" + std::to_string(kFirst + 3)).c_str(), 1);
         Joined joined(host, {1.0, true});
         return sum_for_ever(joined, [](int) {});
       })) {
    EXPECT_EQ(result.value.rfind("soon 138 ", 0), 0U) << result.value << result.failure;
    EXPECT_EQ(result.value.find("not aborted"), std::string::npos) << result.value;
    EXPECT_EQ(result.value.find("no second failure"), std::string::npos) << result.value;
  }
}

TEST(Nccl, ARemoteErrorIsTheDeadRanksWhereOneDied) {
  const std::vector<RankResult> results = testing::run_ranks(2, [](Communicator& host) {
    ::setenv("FAKE_NCCL", ("remote-after=" + std::to_string(kFirst + 2)).c_str(), 1);
    Joined joined(host);
    return sum_for_ever(joined, [&](int i) {
      if (i == 1 && host.rank() == 1) ::kill(::getpid(), SIGKILL);
    });
  });
  EXPECT_EQ(results[0].value.rfind("soon 138 rank 1 died", 0), 0U) << results[0].value << results[0].failure;
}

TEST(Nccl, AcrossHostsTheDeadRankIsNamedToo) {
  if (!testing::can_cross_hosts()) GTEST_SKIP() << "built without Gloo";
  const std::vector<RankResult> results = testing::run_ranks(
      2,
      [](Communicator& host) {
        ::setenv("FAKE_NCCL", ("remote-after=" + std::to_string(kFirst + 4)).c_str(), 1);
        Joined joined(host, {10, true});
        return sum_for_ever(joined, [&](int i) {
          if (i == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
          if (i == 2 && host.rank() == 1) ::kill(::getpid(), SIGKILL);
        });
      },
      testing::Connection{true, 10.0});
  EXPECT_NE(results[0].value.find(" 138 rank 1 "), std::string::npos) << results[0].value << results[0].failure;
  EXPECT_EQ(results[0].value.find("not aborted"), std::string::npos) << results[0].value;
}

TEST(Nccl, ARemoteErrorOfNobodyIsTold) {
  for (const RankResult& result : testing::run_ranks(2, [](Communicator& host) {
         ::setenv("FAKE_NCCL", ("remote-after=" + std::to_string(kFirst + 2)).c_str(), 1);
         Joined joined(host, {1.0, true});
         return sum_for_ever(joined, [](int) {});
       })) {
    EXPECT_EQ(result.value.rfind("soon 138 NCCL: ", 0), 0U) << result.value << result.failure;
    EXPECT_NE(result.value.find("remote process exited"), std::string::npos) << result.value;
    EXPECT_EQ(result.value.find("not aborted"), std::string::npos) << result.value;
  }
}

TEST(Nccl, AnAbortReachesThoseInATransfer) {
  const std::vector<RankResult> results = testing::run_ranks(2, [](Communicator& host) -> std::string {
    ::setenv("FAKE_NCCL", ("hang-after=" + std::to_string(kFirst + 2)).c_str(), 1);
    Joined joined(host);
    std::thread aborter;
    if (host.rank() == 1) {
      aborter = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        (*joined).abort("the disk is full");
      });
    }
    const std::string said = sum_for_ever(joined, [](int) {});
    if (aborter.joinable()) aborter.join();
    return said;
  });
  EXPECT_EQ(results[0].value.rfind("soon 138 rank 1 failed: the disk is full", 0), 0U)
      << results[0].value << results[0].failure;
  EXPECT_EQ(results[1].value.rfind("soon 138 ", 0), 0U) << results[1].value << results[1].failure;
}

TEST(Nccl, AHungRankIsNamedByThoseWhoWait) {
  const std::vector<RankResult> results = testing::run_ranks(
      2,
      [](Communicator& host) {
        Joined joined(host, {1.0, true});
        return sum_for_ever(joined, [&](int i) {
          if (i == 2 && host.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(4));
        });
      },
      testing::Connection{false, 1.0});
  EXPECT_EQ(results[0].value.rfind("soon 138 rank 1 made no progress", 0), 0U)
      << results[0].value << results[0].failure;
}

TEST(Nccl, RanksInDifferentOperationsAreToldSo) {
  for (const RankResult& result : testing::run_ranks(2, [](Communicator& host) -> std::string {
         Joined joined(host);
         std::vector<std::byte> data = values_of(DType::kF32, 0, 1000, 1);
         const ReducePiece piece{joined.memory(data).data(), host.rank() == 0 ? 1000 : 999};
         (*joined).all_reduce(DType::kF32, std::span(&piece, 1));
         return "none";
       }))
    EXPECT_NE(result.failure.find("in another operation, or in one of another size"), std::string::npos)
        << result.failure << result.value;
}

}  // namespace
}  // namespace convoy
