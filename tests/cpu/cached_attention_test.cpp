// The last query of each text over kept keys and values equals attention over the whole text.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/ops/cached_attention.h"
#include "support/graph_runner.h"
#include "support/test_device.h"

namespace convoy {
namespace {

struct Case {
  std::int64_t heads, kv_heads, dim, window;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.heads << '/' << c.kv_heads << 'x' << c.dim << " window " << c.window;
}

class CachedAttentionTest : public ::testing::TestWithParam<Case> {};

// Texts of several lengths; the cache holds their keys and values apart, with rows between that nobody may see.
TEST_P(CachedAttentionTest, EqualsWholeAttention) {
  const Case c = GetParam();
  const std::vector<std::int64_t> lengths = {1, 5, 64, 65, 150};
  const std::int64_t capacity = 160, width = (c.heads + 2 * c.kv_heads) * c.dim, kv = c.kv_heads * c.dim;
  AttentionShape shape;
  shape.heads = c.heads;
  shape.kv_heads = c.kv_heads;
  shape.head_dim = c.dim;
  shape.scale = 1.0 / std::sqrt(static_cast<double>(c.dim));
  shape.window = c.window;
  std::int64_t tokens = 0;
  std::vector<double> starts, last, cache_row;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    for (std::int64_t i = 0; i < lengths[s]; ++i) {
      starts.push_back(static_cast<double>(tokens));
      // The keys of the last token come with its query.
      cache_row.push_back(i + 1 == lengths[s] ? -1 : static_cast<double>(static_cast<std::int64_t>(s) * capacity + i));
    }
    tokens += lengths[s];
    last.push_back(static_cast<double>(tokens - 1));
  }
  const auto count = static_cast<std::int64_t>(lengths.size());
  const std::unique_ptr<Device> device = testing::test_device();
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    if (dtype == DType::kF64 && !device->host_memory()) continue;  // a GPU computes in f32 at most
    const std::vector<double> qkv = testing::random_values(tokens * width, 4);
    Graph whole;
    const ValueId x = whole.add_source(Role::kBatch, "qkv", {dtype, {tokens, width}});
    const ValueId start = whole.add_source(Role::kBatch, "starts", {DType::kI32, {tokens}});
    whole.outputs = {whole.add_op(Attention{shape}, {x, start, kNoValue})[0]};
    const auto expected = testing::run_graph(*device, whole, {{"qkv", qkv}, {"starts", starts}}).at("out0");

    Graph step;
    const ValueId all = step.add_source(Role::kBatch, "qkv", {dtype, {tokens, width}});
    const ValueId row = step.add_source(Role::kBatch, "row", {DType::kI32, {tokens}});
    const ValueId keys = step.add_source(Role::kCache, "k", {dtype, {count * capacity, kv}});
    const ValueId values = step.add_source(Role::kCache, "v", {dtype, {count * capacity, kv}});
    const KeepKeysValues keep(c.heads, c.kv_heads, c.dim);
    const auto name = [&](const std::vector<ValueId>& made) {
      for (int i : {0, 1}) {
        step.value(made[static_cast<std::size_t>(i)]).role = Role::kCache;
        step.value(made[static_cast<std::size_t>(i)]).name = i == 0 ? "k" : "v";
      }
      return made;
    };
    const auto filled = name(step.add_op(keep, {all, row, keys, values}));
    const ValueId now = step.add_source(Role::kBatch, "now", {dtype, {count, width}});
    const ValueId now_row = step.add_source(Role::kBatch, "now_row", {DType::kI32, {count}});
    const ValueId begin = step.add_source(Role::kBatch, "begin", {DType::kI32, {count}});
    const ValueId end = step.add_source(Role::kBatch, "end", {DType::kI32, {count}});
    const auto kept = name(step.add_op(keep, {now, now_row, filled[0], filled[1]}));
    step.outputs = {step.add_op(CachedAttention{shape}, {now, kept[0], kept[1], begin, end})[0]};
    testing::Tensors sources{{"qkv", qkv}, {"row", cache_row}};
    sources["k"] = std::vector<double>(static_cast<std::size_t>(count * capacity * kv), 1e4);
    sources["v"] = sources["k"];
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      const auto first = qkv.begin() + static_cast<std::ptrdiff_t>(last[s]) * width;
      sources["now"].insert(sources["now"].end(), first, first + width);
      const auto base = static_cast<double>(static_cast<std::int64_t>(s) * capacity);
      sources["now_row"].push_back(base + static_cast<double>(lengths[s] - 1));
      sources["begin"].push_back(base);
      sources["end"].push_back(base + static_cast<double>(lengths[s]));
    }
    const auto got = testing::run_graph(*device, step, sources).at("out0");
    const double tolerance = dtype == DType::kF64 ? 1e-12 : dtype == DType::kF32 ? 2e-6 : 1e-2;
    const std::int64_t out = c.heads * c.dim;
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      for (std::int64_t d = 0; d < out; ++d) {
        ASSERT_NEAR(
            got[s * static_cast<std::size_t>(out) + static_cast<std::size_t>(d)],
            expected[static_cast<std::size_t>(last[s]) * static_cast<std::size_t>(out) + static_cast<std::size_t>(d)],
            tolerance)
            << name_of(dtype) << " text " << s << " element " << d;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, CachedAttentionTest,
                         ::testing::Values(Case{4, 2, 8, 0}, Case{3, 3, 64, 0}, Case{12, 1, 6, 0}, Case{2, 1, 256, 0},
                                           Case{4, 2, 16, 7}, Case{1, 1, 80, 64}));

}  // namespace
}  // namespace convoy
