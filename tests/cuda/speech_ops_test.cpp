// The operations of audio encoders, of attention over another sequence and over kept keys, on the CUDA device against
// the CPU device.
#include "cuda/op_comparison.h"
#include "graph/ops/attention.h"
#include "graph/ops/cached_attention.h"
#include "graph/ops/cross_attention.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/frames.h"

namespace convoy {
namespace {

using testing::CudaOps;
using testing::Input;
using testing::made;
using testing::real;
using testing::relative_error;
using testing::Tensors;
using testing::wide;

using CudaSpeechOps = CudaOps;

Input numbers(const std::string& name, std::vector<double> values, DType dtype = DType::kI32) {
  const auto count = static_cast<std::int64_t>(values.size());
  return {name, {dtype, {count}}, std::move(values)};
}

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

double tolerance_of_both_passes(DType dtype) {
  return dtype == DType::kF32 ? 5e-6 : (dtype == DType::kF16 ? 3e-3 : 2e-2);
}

std::vector<double> rounded(DType dtype, const std::vector<double>& values) {
  return testing::from_bytes(dtype, testing::to_bytes(dtype, values));
}

TEST_F(CudaSpeechOps, Convolution) {
  const std::int64_t windows = 3;
  for (const std::int64_t frames : {1, 5, 6, 150}) {
    for (const std::int64_t stride : {1, 2}) {
      for (const std::int64_t channels : {1, 3, 8, 80, 100}) {
        compare(made(Unfold{frames, stride}), {real("x", {windows * frames, channels}, 1)});
        const Shape columns{windows * convolved_frames(frames, stride), kConvolutionTaps * channels};
        compare(made(UnfoldGrad{frames, stride}), {real("dy", columns, 2)});
      }
    }
  }
}

TEST_F(CudaSpeechOps, RowsThatTakeTheirPlace) {
  for (const std::int64_t width : {1, 7, 64, 200}) {
    const std::int64_t tokens = 301, rows = 90;
    std::vector<double> source(tokens, -1.0);
    for (std::int64_t r = 0; r + 5 < rows; ++r)
      source[static_cast<std::size_t>(r * 7 % tokens)] = static_cast<double>(r);
    compare(made(ReplaceRows{}),
            {real("text", {tokens, width}, 3), real("rows", {rows, width}, 4), numbers("source", source)});
    compare(made(ReplaceRowsGrad{rows}), {real("dy", {tokens, width}, 5), numbers("source", source)});
    compare(made(Reshape{Shape{tokens * width, 1}}), {real("x", {tokens, width}, 6)});
    // Behind an operation whose result they may take as their own buffer.
    for (const DType dtype : kTypes) {
      const auto chain = [&](Device& device) {
        Graph g;
        const ValueId text = g.add_source(Role::kBatch, "text", {dtype, {tokens, width}});
        const ValueId audio = g.add_source(Role::kBatch, "rows", {dtype, {rows, width}});
        const ValueId places = g.add_source(Role::kBatch, "source", {DType::kI32, {tokens}});
        const ValueId y = g.add_op(ReplaceRows{}, {g.add_op(Add{}, {text, text})[0], audio, places})[0];
        const ValueId flat = g.add_op(Reshape{Shape{1, tokens * width}}, {g.add_op(Add{}, {y, y})[0]})[0];
        g.outputs = g.add_op(ReplaceRowsGrad{rows}, {g.add_op(Reshape{Shape{tokens, width}}, {flat})[0], places});
        return testing::run_graph(device, g,
                                  {{"text", rounded(dtype, testing::random_values(tokens * width, 7))},
                                   {"rows", rounded(dtype, testing::random_values(rows * width, 8))},
                                   {"source", source}});
      };
      const Tensors expected = chain(cpu_), got = chain(*device_);
      EXPECT_EQ(got.at("out0"), expected.at("out0")) << name_of(dtype) << " " << width;
      EXPECT_EQ(got.at("out1"), expected.at("out1")) << name_of(dtype) << " " << width;
    }
  }
}

TEST_F(CudaSpeechOps, BiasesOfFusedProducts) {
  for (const std::int64_t n : {1, 37, 256}) {
    const std::vector<BiasPart> parts{{0, 0, n}, {n, 2 * n, n}};  // queries and values; keys have none
    compare(made(ExpandBias{3 * n, parts}), {real("b", {2 * n}, 9)});
    compare(made(ExpandBiasGrad{2 * n, parts}), {wide(real("d", {3 * n}, 10))});
    compare(made(ExpandBiasGrad{2 * n, parts}), {wide(real("d", {3 * n}, 11)), wide(real("sum", {2 * n}, 12))});
  }
}

struct Cross {
  std::int64_t tokens, keys;
  std::vector<double> begin, end;
};

// Every row of tokens sees its own row of keys.
Cross whole_rows(std::int64_t rows, std::int64_t queries, std::int64_t keys) {
  Cross c{rows * queries, rows * keys, {}, {}};
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    c.begin.push_back(static_cast<double>(t / queries * keys));
    c.end.push_back(c.begin.back() + static_cast<double>(keys));
  }
  return c;
}

// In any order, some of them empty.
Cross any_ranges(std::int64_t tokens, std::int64_t keys, std::uint64_t stream) {
  RandomStream random(31, stream);
  Cross c{tokens, keys, {}, {}};
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto begin = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(keys)));
    const auto most = static_cast<std::uint64_t>(keys - begin + 1);
    const std::int64_t length = random.below(4) == 0 ? 0 : static_cast<std::int64_t>(random.below(most));
    c.begin.push_back(static_cast<double>(begin));
    c.end.push_back(static_cast<double>(begin + length));
  }
  return c;
}

// o, dq and dkv of both passes.
Tensors run_cross(Device& device, DType type, DType held, const AttentionShape& shape, const Cross& c) {
  const std::int64_t q_width = shape.heads * shape.head_dim, kv_width = 2 * shape.kv_heads * shape.head_dim;
  Graph g;
  const ValueId q = g.add_source(Role::kBatch, "q", {type, {c.tokens, q_width}});
  const ValueId kv = g.add_source(Role::kBatch, "kv", {type, {c.keys, kv_width}});
  const ValueId d = g.add_source(Role::kBatch, "do", {type, {c.tokens, q_width}});
  const ValueId begin = g.add_source(Role::kBatch, "begin", {DType::kI32, {c.tokens}});
  const ValueId end = g.add_source(Role::kBatch, "end", {DType::kI32, {c.tokens}});
  const ValueId token_keys = g.add_source(Role::kBatch, "keys", {DType::kI64, {c.tokens}});
  const auto o = g.add_op(CrossAttention{shape}, {q, kv, begin, end, token_keys});
  g.outputs = g.add_op(CrossAttentionGrad{shape}, {d, q, kv, o[0], o[1], begin, end, token_keys});
  g.outputs.push_back(o[0]);
  return testing::run_graph(device, g,
                            {{"q", rounded(held, testing::random_values(c.tokens * q_width, 20))},
                             {"kv", rounded(held, testing::random_values(c.keys * kv_width, 21))},
                             {"do", rounded(held, testing::random_values(c.tokens * q_width, 22))},
                             {"begin", c.begin},
                             {"end", c.end},
                             {"keys", testing::keys(c.tokens).values}});
}

TEST_F(CudaSpeechOps, CrossAttention) {
  struct Heads {
    std::int64_t heads, kv_heads, dim;
  };
  for (const Heads& h :
       {Heads{4, 2, 16}, Heads{2, 2, 64}, Heads{3, 1, 80}, Heads{2, 2, 6}, Heads{2, 1, 128}, Heads{1, 1, 192}}) {
    for (const float dropout : {0.0F, 0.3F}) {
      AttentionShape shape;
      shape.heads = h.heads;
      shape.kv_heads = h.kv_heads;
      shape.head_dim = h.dim;
      shape.scale = 1.3 / std::sqrt(static_cast<double>(h.dim));
      shape.dropout = dropout;
      shape.seed = 0x123456789abcdefULL;
      shape.use = 4;
      struct Case {
        std::string name;
        Cross cross;
        std::int64_t row_keys;
      };
      for (const Case& c :
           {Case{"whole rows", whole_rows(3, 33, 150), 150}, Case{"one row", whole_rows(1, 128, 64), 64},
            Case{"given ranges", whole_rows(2, 70, 129), 0}, Case{"any ranges", any_ranges(130, 200, 1), 0},
            Case{"few tokens", any_ranges(3, 300, 2), 0}, Case{"few keys", any_ranges(300, 3, 3), 0}}) {
        shape.row_tokens = c.row_keys;
        shape.whole_rows = c.row_keys > 0;
        for (const DType dtype : kTypes) {
          const Tensors got = run_cross(*device_, dtype, dtype, shape, c.cross);
          const Tensors expected = run_cross(cpu_, DType::kF64, dtype, shape, c.cross);
          for (const auto& [name, values] : expected) {
            const double error = relative_error(got.at(name), values);
            EXPECT_TRUE(error < tolerance_of_both_passes(dtype))
                << name << " " << name_of(dtype) << " " << c.name << " " << shape.str() << ": " << error;
          }
        }
      }
    }
  }
}

TEST_F(CudaSpeechOps, CrossAttentionGivesTheSameBitsOnEveryRun) {
  AttentionShape shape;
  shape.heads = shape.kv_heads = 4;
  shape.head_dim = 64;
  shape.scale = 0.125;
  for (const bool whole : {true, false}) {
    shape.row_tokens = whole ? 300 : 0;
    shape.whole_rows = whole;
    const Cross c = whole_rows(4, 96, 300);
    for (const DType dtype : kTypes) {
      const Tensors first = run_cross(*device_, dtype, dtype, shape, c);
      for (int again = 0; again < 3; ++again)
        EXPECT_EQ(run_cross(*device_, dtype, dtype, shape, c), first) << name_of(dtype) << (whole ? " whole" : "");
    }
  }
}

// As audio encoders attend: both ways over windows that the batch does not change.
TEST_F(CudaSpeechOps, AttentionOverWholeWindows) {
  for (const std::int64_t dim : {64, 80, 6}) {
    for (const std::int64_t row : {75, 128, 17}) {
      const std::int64_t heads = 3, tokens = 3 * row;
      AttentionShape shape;
      shape.heads = shape.kv_heads = heads;
      shape.head_dim = dim;
      shape.scale = 1 / std::sqrt(static_cast<double>(dim));
      shape.causal = false;
      shape.row_tokens = row;
      shape.whole_rows = true;
      std::vector<double> start;
      for (std::int64_t t = 0; t < tokens; ++t) start.push_back(static_cast<double>(t - t % row));
      for (const DType dtype : kTypes) {
        const auto both = [&](Device& device, DType type) {
          Graph g;
          const ValueId x = g.add_source(Role::kBatch, "qkv", {type, {tokens, 3 * heads * dim}});
          const ValueId s = g.add_source(Role::kBatch, "start", {DType::kI32, {tokens}});
          const ValueId d = g.add_source(Role::kBatch, "dy", {type, {tokens, heads * dim}});
          const auto o = g.add_op(Attention{shape}, {x, s});
          g.outputs = g.add_op(AttentionGrad{shape}, {d, x, o[0], o[1], s});
          g.outputs.push_back(o[0]);
          return testing::run_graph(device, g,
                                    {{"qkv", rounded(dtype, testing::random_values(tokens * 3 * heads * dim, 23))},
                                     {"dy", rounded(dtype, testing::random_values(tokens * heads * dim, 24))},
                                     {"start", start}});
        };
        const Tensors got = both(*device_, dtype), expected = both(cpu_, DType::kF64);
        for (const auto& [name, values] : expected) {
          const double error = relative_error(got.at(name), values);
          EXPECT_TRUE(error < tolerance_of_both_passes(dtype))
              << name << " " << name_of(dtype) << " rows of " << row << ", " << shape.str() << ": " << error;
        }
      }
    }
  }
}

TEST_F(CudaSpeechOps, KeptKeysAndValues) {
  struct Heads {
    std::int64_t heads, kv_heads, dim, window;
  };
  for (const Heads& h : {Heads{4, 2, 8, 0}, Heads{3, 3, 64, 0}, Heads{12, 1, 6, 0}, Heads{7, 1, 128, 0},
                         Heads{2, 1, 256, 0}, Heads{5, 5, 80, 64}, Heads{4, 2, 90, 7}, Heads{14, 2, 64, 300}}) {
    AttentionShape shape;
    shape.heads = h.heads;
    shape.kv_heads = h.kv_heads;
    shape.head_dim = h.dim;
    shape.scale = 1 / std::sqrt(static_cast<double>(h.dim));
    shape.window = h.window;
    const std::int64_t width = (h.heads + 2 * h.kv_heads) * h.dim, rows = 1500, kv = h.kv_heads * h.dim;
    // One query, and several of texts of all lengths: none, one, just a tile, many.
    for (const std::vector<double>& lengths :
         {std::vector<double>{1234}, std::vector<double>{0, 1, 63, 64, 65, 255, 256, 257, 700, 1}}) {
      const auto tokens = static_cast<std::int64_t>(lengths.size());
      std::vector<double> begin, end;
      for (std::size_t t = 0; t < lengths.size(); ++t) {
        begin.push_back(static_cast<double>(t * 17));
        end.push_back(begin.back() + lengths[t]);
      }
      compare(made(CachedAttention{shape}),
              {real("qkv", {tokens, width}, 25, 3), real("k", {rows, kv}, 26), real("v", {rows, kv}, 27),
               numbers("begin", begin), numbers("end", end)},
              2);
      std::vector<double> row;
      for (std::int64_t t = 0; t < tokens; ++t) row.push_back(t == 4 ? -1.0 : static_cast<double>(t * 37 + 5));
      Input k = real("k", {rows, kv}, 28), v = real("v", {rows, kv}, 29);
      k.role = v.role = Role::kCache;
      compare(made(KeepKeysValues{h.heads, h.kv_heads, h.dim}),
              {real("qkv", {tokens, width}, 30), numbers("row", row), k, v});
    }
  }
}

}  // namespace
}  // namespace convoy
