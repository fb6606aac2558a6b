// The audio encoders' operations: values against their definition, backward rules against finite differences.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/cpu_device.h"
#include "graph/ops/activation.h"
#include "graph/ops/cross_attention.h"
#include "graph/ops/frames.h"
#include "graph/ops/linear.h"
#include "passes/differentiate.h"
#include "support/graph_runner.h"

namespace convoy::testing {
namespace {

class SpeechOps : public ::testing::Test {
 protected:
  CpuDevice device_;
};

struct Builder {
  Graph& graph;
  Tensors& sources;
  std::uint64_t stream = 0;

  ValueId floats(const std::string& name, const Shape& shape, Role role = Role::kBatch) {
    sources[name] = random_values(shape.numel(), ++stream);
    return graph.add_source(role, name, {DType::kF64, shape});
  }
  ValueId ints(const std::string& name, const std::vector<double>& values, DType dtype = DType::kI32) {
    sources[name] = values;
    return graph.add_source(Role::kBatch, name, {dtype, {static_cast<std::int64_t>(values.size())}});
  }
};

TEST_F(SpeechOps, ConvolutionIsTheSumOverTapsAndChannels) {
  constexpr std::int64_t kChannels = 3, kOut = 2, kWindows = 2;
  for (const std::int64_t frames : {5, 6}) {
    for (const std::int64_t stride : {1, 2}) {
      Graph g;
      Tensors t;
      Builder b{g, t};
      const ValueId x = b.floats("x", {kWindows * frames, kChannels});
      const ValueId w = b.floats("w", {kOut, kChannels * 3}, Role::kWeight);
      g.outputs = {g.add_op(Linear{}, {g.add_op(Unfold{frames, stride}, {x})[0], w})[0]};
      const std::vector<double> y = run_graph(device_, g, t).at("out0");
      const std::int64_t out_frames = (frames + 2 - 3) / stride + 1;
      ASSERT_EQ(y.size(), static_cast<std::size_t>(kWindows * out_frames * kOut));
      for (std::int64_t i = 0; i < kWindows * out_frames * kOut; ++i) {
        const std::int64_t o = i % kOut, at = i / kOut % out_frames, window = i / kOut / out_frames;
        double sum = 0;
        for (std::int64_t c = 0; c < kChannels; ++c) {
          for (std::int64_t k = 0; k < 3; ++k) {
            const std::int64_t s = at * stride + k - 1;
            if (s < 0 || s >= frames) continue;
            sum += t["x"][static_cast<std::size_t>((window * frames + s) * kChannels + c)] *
                   t["w"][static_cast<std::size_t>((o * kChannels + c) * 3 + k)];
          }
        }
        EXPECT_NEAR(y[static_cast<std::size_t>(i)], sum, 1e-12) << frames << " " << stride << " " << i;
      }
    }
  }
}

TEST_F(SpeechOps, Convolution) {
  for (const std::int64_t frames : {5, 6}) {
    for (const std::int64_t stride : {1, 2}) {
      check_gradients(device_, {[&](Graph& g, Tensors& t) {
                                  Builder b{g, t};
                                  const ValueId x = b.floats("x", {2 * frames, 3});
                                  const ValueId w = b.floats("w", {4, 9}, Role::kWeight);
                                  const ValueId bias = b.floats("b", {4}, Role::kWeight);
                                  const ValueId columns = g.add_op(Unfold{frames, stride}, {x})[0];
                                  return g.add_op(Gelu{false}, {g.add_op(Linear{}, {columns, w, bias})[0]})[0];
                                },
                                {"x", "w", "b"}});
    }
  }
}

TEST_F(SpeechOps, Reshape) {
  check_gradients(device_, {[](Graph& g, Tensors& t) {
                              Builder b{g, t};
                              const ValueId x = b.floats("x", {8, 3});
                              const ValueId w = b.floats("w", {5, 12}, Role::kWeight);
                              return g.add_op(Linear{}, {g.add_op(Reshape{Shape{2, 12}}, {x})[0], w})[0];
                            },
                            {"x", "w"}});
}

TEST_F(SpeechOps, ReplaceRows) {
  check_gradients(
      device_, {[](Graph& g, Tensors& t) {
                  Builder b{g, t};
                  const ValueId text = b.floats("text", {6, 4});
                  const ValueId rows = b.floats("rows", {4, 4});
                  // Row 2 is not used; the order differs from the text's.
                  const ValueId y = g.add_op(ReplaceRows{}, {text, rows, b.ints("source", {-1, 3, 0, -1, 1, -1})})[0];
                  return g.add_op(Gelu{false}, {y})[0];
                },
                {"text", "rows"}});
}

TEST_F(SpeechOps, ExpandedBiasHasZerosWhereThereIsNone) {
  const std::vector<BiasPart> parts = {{0, 0, 2}, {2, 4, 2}};  // queries and values; keys have none
  check_gradients(device_, {[&](Graph& g, Tensors& t) {
                              Builder b{g, t};
                              const ValueId x = b.floats("x", {5, 3});
                              const ValueId w = b.floats("w", {6, 3}, Role::kWeight);
                              const ValueId bias = b.floats("b", {4}, Role::kWeight);
                              const ValueId fused = g.add_op(ExpandBias{6, parts}, {bias})[0];
                              return g.add_op(Gelu{false}, {g.add_op(Linear{}, {x, w, fused})[0]})[0];
                            },
                            {"x", "w", "b"}});
  Graph g;
  Tensors t;
  Builder b{g, t};
  const ValueId bias = b.floats("b", {4});
  g.outputs = {g.add_op(ExpandBias{6, parts}, {bias})[0]};
  const std::vector<double>& v = t["b"];
  EXPECT_EQ(run_graph(device_, g, t).at("out0"), (std::vector<double>{v[0], v[1], 0, 0, v[2], v[3]}));
}

TEST_F(SpeechOps, CrossAttention) {
  AttentionShape shape;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 8;
  shape.scale = 0.35;
  for (const float dropout : {0.0f, 0.3f}) {
    shape.dropout = dropout;
    check_gradients(device_, {[&](Graph& g, Tensors& t) {
                                Builder b{g, t};
                                const ValueId q = b.floats("q", {5, 4 * 8});
                                const ValueId kv = b.floats("kv", {11, 2 * 2 * 8});
                                // Two sequences, whose queries see other numbers of keys; the last sees none.
                                const ValueId begin = b.ints("begin", {0, 0, 4, 4, 4});
                                const ValueId end = b.ints("end", {4, 4, 11, 11, 4});
                                const ValueId keys = b.ints("keys", {21, 22, 23, 24, 25}, DType::kI64);
                                return g.add_op(CrossAttention{shape}, {q, kv, begin, end, keys})[0];
                              },
                              {"q", "kv"}});
  }
}

TEST_F(SpeechOps, CrossAttentionIsTheSoftmaxOverTheKeysOfTheRange) {
  constexpr std::int64_t kTokens = 3, kKeys = 7, kDim = 4;
  AttentionShape shape;
  shape.head_dim = kDim;
  shape.scale = 0.5;
  Graph g;
  Tensors t;
  Builder b{g, t};
  const std::vector<double> begin = {0, 2, 3}, end = {7, 5, 3};
  const ValueId q = b.floats("q", {kTokens, kDim});
  const ValueId kv = b.floats("kv", {kKeys, 2 * kDim});
  g.outputs = {g.add_op(CrossAttention{shape}, {q, kv, b.ints("begin", begin), b.ints("end", end)})[0]};
  const std::vector<double> o = run_graph(device_, g, t).at("out0");
  for (std::size_t i = 0; i < kTokens; ++i) {
    double sum = 0;
    std::vector<double> expected(kDim, 0.0);
    for (std::size_t k = static_cast<std::size_t>(begin[i]); k < static_cast<std::size_t>(end[i]); ++k) {
      double score = 0;
      for (std::size_t d = 0; d < kDim; ++d) score += t["q"][i * kDim + d] * t["kv"][k * 2 * kDim + d];
      const double p = std::exp(0.5 * score);
      sum += p;
      for (std::size_t d = 0; d < kDim; ++d) expected[d] += p * t["kv"][k * 2 * kDim + kDim + d];
    }
    for (std::size_t d = 0; d < kDim; ++d)
      EXPECT_NEAR(o[i * kDim + d], sum > 0 ? expected[d] / sum : 0.0, 1e-12) << i << " " << d;
  }
}

}  // namespace
}  // namespace convoy::testing
