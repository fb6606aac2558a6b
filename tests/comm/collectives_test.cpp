#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/random.h"
#include "comm/tree_sum.h"
#include "support/ranks.h"

namespace convoy {
namespace {

using testing::run_healthy_ranks;

// What rank r holds: a function of rank, position and dtype alone.
std::vector<std::byte> values_of(DType dtype, int rank, std::int64_t count, int seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_of(dtype));
  std::uint64_t state = 0x9e3779b97f4a7c15ULL * static_cast<std::uint64_t>(rank * 1000 + seed + 1);
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const double value = static_cast<double>(static_cast<std::int64_t>(state >> 33)) / 1e8 - 10;
    const auto k = static_cast<std::size_t>(i);
    switch (dtype) {
      case DType::kF64:
        reinterpret_cast<double*>(bytes.data())[k] = value;
        break;
      case DType::kBF16:
        reinterpret_cast<BF16*>(bytes.data())[k] = to_bf16(static_cast<float>(value));
        break;
      case DType::kF16:
        reinterpret_cast<F16*>(bytes.data())[k] = to_f16(static_cast<float>(value));
        break;
      default:
        reinterpret_cast<float*>(bytes.data())[k] = static_cast<float>(value);
    }
  }
  return bytes;
}

std::vector<std::byte> expected_sum(DType dtype, int ranks, std::int64_t count, int seed) {
  std::vector<std::vector<std::byte>> all;
  std::vector<const std::byte*> operands;
  for (int r = 0; r < ranks; ++r) all.push_back(values_of(dtype, r, count, seed));
  for (const auto& each : all) operands.push_back(each.data());
  std::vector<std::byte> sum(all[0].size());
  tree_sum(dtype, operands, sum.data(), count);
  return sum;
}

// "" or what differs.
std::string compare(const char* what, std::span<const std::byte> got, std::span<const std::byte> wanted) {
  if (std::ranges::equal(got, wanted)) return "";
  return std::string(what) + " differs; ";
}

TEST(TreeSum, AddsNeighboursFirst) {
  // 1 + 2^-24 rounds away, 2^-24 + 2^-24 does not: the order shows.
  const float tiny = 5.9604644775390625e-08F;
  const std::vector<float> ones = {1.0F};
  const std::vector<float> tinies = {tiny};
  const auto bytes = [](const std::vector<float>& v) { return reinterpret_cast<const std::byte*>(v.data()); };
  float sum = 0;
  const std::vector<const std::byte*> four = {bytes(ones), bytes(tinies), bytes(tinies), bytes(tinies)};
  tree_sum(DType::kF32, four, reinterpret_cast<std::byte*>(&sum), 1);
  EXPECT_EQ(sum, (1.0F + tiny) + (tiny + tiny));
  const std::vector<const std::byte*> three = {bytes(tinies), bytes(tinies), bytes(ones)};
  tree_sum(DType::kF32, three, reinterpret_cast<std::byte*>(&sum), 1);
  EXPECT_EQ(sum, (tiny + tiny) + 1.0F);
  std::vector<const std::byte*> eight(8, bytes(tinies));
  eight[0] = bytes(ones);
  tree_sum(DType::kF32, eight, reinterpret_cast<std::byte*>(&sum), 1);
  EXPECT_EQ(sum, ((1.0F + tiny) + (tiny + tiny)) + ((tiny + tiny) + (tiny + tiny)));
}

TEST(TreeSum, AllCountsAgreeWithTheRule) {
  // Splitting at a power of two sums the parts first; in 16 bits too, where each sum is rounded.
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    for (const int count : {4, 5, 6, 7, 12, 16}) {
      const int left = count > 8 ? 8 : (count > 4 ? 4 : 2);
      const std::int64_t n = 1000;
      std::vector<std::vector<std::byte>> all;
      std::vector<const std::byte*> operands;
      for (int r = 0; r < count; ++r) all.push_back(values_of(dtype, r, n, 3));
      for (const auto& each : all) operands.push_back(each.data());
      std::vector<std::byte> whole(all[0].size()), a(whole.size()), b(whole.size()), joined(whole.size());
      tree_sum(dtype, operands, whole.data(), n);
      tree_sum(dtype, std::span(operands).first(static_cast<std::size_t>(left)), a.data(), n);
      tree_sum(dtype, std::span(operands).subspan(static_cast<std::size_t>(left)), b.data(), n);
      const std::vector<const std::byte*> two = {a.data(), b.data()};
      tree_sum(dtype, two, joined.data(), n);
      EXPECT_EQ(compare("sum", whole, joined), "") << count;
    }
}

struct Group {
  int ranks;
  bool across_hosts;
};
void PrintTo(const Group& group, std::ostream* out) {
  *out << group.ranks << (group.across_hosts ? " hosts" : " ranks");
}

class Ranks : public ::testing::TestWithParam<Group> {
 protected:
  void SetUp() override {
    if (GetParam().across_hosts && !testing::can_cross_hosts()) GTEST_SKIP() << "built without Gloo";
  }
  static int count() { return GetParam().ranks; }
  static std::vector<std::string> run(const std::function<std::string(Communicator&)>& body) {
    testing::Connection connection;
    connection.across_hosts = GetParam().across_hosts;
    return run_healthy_ranks(count(), body, connection);
  }
};
INSTANTIATE_TEST_SUITE_P(OneHost, Ranks,
                         ::testing::Values(Group{1, false}, Group{2, false}, Group{3, false}, Group{4, false},
                                           Group{8, false}));
INSTANTIATE_TEST_SUITE_P(Hosts, Ranks, ::testing::Values(Group{2, true}, Group{3, true}, Group{4, true}));

// Sizes around the small path, the chunk and its parts.
const std::vector<std::int64_t> kCounts = {0, 1, 7, 1000, 4097, 300'001, 1'000'003};

TEST_P(Ranks, AllReduceIsTheTreeSum) {
  const int ranks = count();
  const auto results = run([&](Communicator& c) {
    std::string wrong;
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      for (const std::int64_t count : kCounts) {
        std::vector<std::byte> data = values_of(dtype, c.rank(), count, 1);
        const ReducePiece piece{data.data(), count};
        c.all_reduce(dtype, std::span(&piece, 1));
        wrong += compare("all-reduce", data, expected_sum(dtype, ranks, count, 1));
      }
    }
    return wrong;
  });
  for (const std::string& wrong : results) EXPECT_EQ(wrong, "");
}

TEST_P(Ranks, ReduceScatterAndAllGatherOfManyPieces) {
  const int ranks = count();
  const auto results = run([&](Communicator& c) {
    std::string wrong;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<std::vector<std::byte>> full, shards, gathered;
      std::vector<ScatterPiece> scatter;
      std::vector<GatherPiece> gather;
      for (const std::int64_t count : kCounts) {
        const ShardCut cut = cut_evenly(count, 64, ranks);
        full.push_back(values_of(dtype, c.rank(), count, 2));
        shards.emplace_back(static_cast<std::size_t>(cut.length(c.rank())) * size_of(dtype));
        gathered.emplace_back(full.back().size());
        scatter.push_back({full.back().data(), shards.back().data(), cut});
        gather.push_back({shards.back().data(), gathered.back().data(), cut});
      }
      c.reduce_scatter(dtype, scatter);
      c.all_gather(dtype, gather);
      for (std::size_t i = 0; i < kCounts.size(); ++i) {
        const std::vector<std::byte> sum = expected_sum(dtype, ranks, kCounts[i], 2);
        const auto begin = static_cast<std::size_t>(scatter[i].cut.begin(c.rank())) * size_of(dtype);
        wrong += compare("shard", shards[i], std::span(sum).subspan(std::min(begin, sum.size()), shards[i].size()));
        wrong += compare("all-gather", gathered[i], sum);
      }
    }
    return wrong;
  });
  for (const std::string& wrong : results) EXPECT_EQ(wrong, "");
}

TEST_P(Ranks, InPlaceForms) {
  const int ranks = count();
  const auto results = run([&](Communicator& c) {
    const std::int64_t count = 700'001;
    const ShardCut cut = cut_evenly(count, 64, ranks);
    std::vector<std::byte> data = values_of(DType::kF32, c.rank(), count, 4);
    std::byte* mine = data.data() + static_cast<std::size_t>(cut.begin(c.rank())) * 4;
    const ScatterPiece scatter{data.data(), mine, cut};
    c.reduce_scatter(DType::kF32, std::span(&scatter, 1));
    const GatherPiece gather{mine, data.data(), cut};
    c.all_gather(DType::kF32, std::span(&gather, 1));
    return compare("in place", data, expected_sum(DType::kF32, ranks, count, 4));
  });
  for (const std::string& wrong : results) EXPECT_EQ(wrong, "");
}

TEST_P(Ranks, StartedOperationsRunInOrder) {
  const int ranks = count();
  const auto results = run([&](Communicator& c) {
    const std::int64_t count = 200'000;
    std::string wrong;
    std::vector<std::byte> a = values_of(DType::kF32, c.rank(), count, 5);
    std::vector<std::byte> b = values_of(DType::kF32, c.rank(), count, 6);
    const ReducePiece first{a.data(), count};
    const ReducePiece second{b.data(), count};
    for (int round = 0; round < 5; ++round) {
      const std::vector<std::byte> fresh = values_of(DType::kF32, c.rank(), count, round);
      std::copy(fresh.begin(), fresh.end(), a.begin());
      const Communicator::Ticket one = c.start_all_reduce(DType::kF32, std::span(&first, 1));
      const Communicator::Ticket two = c.start_all_reduce(DType::kF32, std::span(&second, 1));
      c.wait(two);
      c.wait(one);
      wrong += compare("started", a, expected_sum(DType::kF32, ranks, count, round));
      const std::vector<std::byte> other = values_of(DType::kF32, c.rank(), count, 6);
      std::copy(other.begin(), other.end(), b.begin());
      // A blocking call comes after what was started.
      c.start_all_reduce(DType::kF32, std::span(&first, 1));
      c.barrier();
    }
    return wrong;
  });
  for (const std::string& wrong : results) EXPECT_EQ(wrong, "");
}

TEST_P(Ranks, OtherOperations) {
  const int ranks = count();
  const auto results = run([&](Communicator& c) {
    std::string wrong;
    for (const std::int64_t count : kCounts) {
      const int root = c.size() - 1;
      std::vector<std::byte> data = values_of(DType::kF32, c.rank(), count, 7);
      c.broadcast(data, root);
      wrong += compare("broadcast", data, values_of(DType::kF32, root, count, 7));
      // Block d of rank r is values_of(r, seed d).
      std::vector<std::byte> out, in, wanted;
      for (int d = 0; d < ranks; ++d) {
        const auto block = values_of(DType::kF32, c.rank(), count / 10, d);
        const auto from = values_of(DType::kF32, d, count / 10, c.rank());
        out.insert(out.end(), block.begin(), block.end());
        wanted.insert(wanted.end(), from.begin(), from.end());
      }
      in.resize(out.size());
      c.all_to_all(out, in);
      wrong += compare("all-to-all", in, wanted);
      if (ranks == 1) continue;
      // Around the ring, even ranks first.
      const int to = (c.rank() + 1) % ranks;
      const int from = (c.rank() + ranks - 1) % ranks;
      const std::vector<std::byte> mine = values_of(DType::kF32, c.rank(), count, 8);
      std::vector<std::byte> got(mine.size());
      if (c.rank() % 2 == 0) c.send(mine, to);
      c.receive(got, from);
      if (c.rank() % 2 == 1) c.send(mine, to);
      wrong += compare("send", got, values_of(DType::kF32, from, count, 8));
    }
    return wrong;
  });
  for (const std::string& wrong : results) EXPECT_EQ(wrong, "");
}

TEST(Groups, SplitByColour) {
  for (const bool across_hosts : {false, true}) {
    if (across_hosts && !testing::can_cross_hosts()) break;
    testing::Connection connection;
    connection.across_hosts = across_hosts;
    const auto results = run_healthy_ranks(
        4,
        [&](Communicator& c) {
          const std::unique_ptr<Communicator> group = c.split(c.rank() % 2);
          double value = c.rank();
          const ReducePiece piece{reinterpret_cast<std::byte*>(&value), 1};
          group->all_reduce(DType::kF64, std::span(&piece, 1));
          c.barrier();
          return std::to_string(group->rank()) + "/" + std::to_string(group->size()) + " " +
                 std::to_string(static_cast<int>(value));
        },
        connection);
    EXPECT_EQ(results, (std::vector<std::string>{"0/2 2", "0/2 4", "1/2 2", "1/2 4"}));
  }
}

TEST(Groups, TrafficFollowsTheFormulas) {
  for (const int ranks : {2, 4}) {
    const auto results = run_healthy_ranks(ranks, [&](Communicator& c) {
      const std::int64_t count = 64 * 1024;
      std::vector<float> data(static_cast<std::size_t>(count));
      const ShardCut cut = cut_evenly(count, 64, ranks);
      auto* bytes = reinterpret_cast<std::byte*>(data.data());
      const ScatterPiece scatter{bytes, bytes + cut.begin(c.rank()) * 4, cut};
      const GatherPiece gather{bytes + cut.begin(c.rank()) * 4, bytes, cut};
      const ReducePiece reduce{bytes, count};
      c.reduce_scatter(DType::kF32, std::span(&scatter, 1));
      c.all_gather(DType::kF32, std::span(&gather, 1));
      c.all_reduce(DType::kF32, std::span(&reduce, 1));
      const auto whole = static_cast<std::uint64_t>(count) * 4;
      const auto n = static_cast<std::uint64_t>(ranks);
      const Traffic& t = c.traffic();
      return std::string(t.reduce_scatter == whole * (n - 1) / n && t.all_gather == whole * (n - 1) / n &&
                                 t.all_reduce == 2 * whole * (n - 1) / n
                             ? ""
                             : "wrong");
    });
    for (const std::string& wrong : results) EXPECT_EQ(wrong, "");
  }
}

}  // namespace
}  // namespace convoy
