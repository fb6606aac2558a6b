// Every kernel of the CUDA device against the CPU device in float32, on random inputs of odd sizes.
#include "cuda/op_comparison.h"
#include "graph/ops/activation.h"
#include "graph/ops/attention.h"
#include "graph/ops/compress.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/embedding.h"
#include "graph/ops/linear.h"
#include "graph/ops/linear_cross_entropy.h"
#include "graph/ops/norm.h"
#include "graph/ops/rotary.h"
#include "graph/ops/update.h"

namespace convoy {
namespace {

using testing::CudaOps;
using testing::Input;
using testing::ints;
using testing::keys;
using testing::made;
using testing::real;
using testing::relative_error;
using testing::Tensors;
using testing::wide;

TEST_F(CudaOps, Elementwise) {
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 7}, Shape{65, 96}, Shape{17, 1000}}) {
    compare(made(Add{}), {real("a", shape, 1), real("b", shape, 2)});
    compare(made(Scale{0.3}), {real("a", shape, 3)});
    for (const bool tanh : {false, true}) {
      compare(made(Gelu{tanh}), {real("x", shape, 4, 3)});
      compare(made(GeluGrad{tanh}), {real("dy", shape, 5), real("x", shape, 6, 3)});
    }
    const Shape doubled{shape[0], 2 * shape[1]};
    compare(made(SwiGlu{}), {real("x", doubled, 7, 4)});
    compare(made(SwiGluGrad{}), {real("dy", shape, 8), real("x", doubled, 9, 4)});
    compare(made(Dropout{0.3F, 0x123456789abcULL, 5}), {real("x", shape, 10), keys(shape[0])});
  }
}

TEST_F(CudaOps, Rotary) {
  struct Case {
    std::int64_t heads, key_heads, dim, rotary;
  };
  for (const Case& c : {Case{3, 1, 16, 16}, Case{4, 2, 64, 32}, Case{2, 2, 6, 4}, Case{14, 2, 64, 64}}) {
    for (const auto pairing : {RotaryPairing::kHalf, RotaryPairing::kInterleaved}) {
      for (const bool inverse : {false, true}) {
        const std::int64_t rows = 37, half = c.rotary / 2;
        compare(made(Rotary{c.heads + c.key_heads, c.dim, c.rotary, pairing, inverse}),
                {real("x", {rows, (c.heads + 2 * c.key_heads) * c.dim}, 11), wide(real("cos", {64, half}, 12)),
                 wide(real("sin", {64, half}, 13)), ints("positions", rows, 64, 14)});
      }
    }
  }
}

TEST_F(CudaOps, Norms) {
  for (const Shape& shape :
       {Shape{1, 8}, Shape{5, 33}, Shape{70, 896}, Shape{1100, 64}, Shape{9, 5000}, Shape{3, 12288}, Shape{2500, 1280},
        Shape{1111, 1536}, Shape{1200, 304}, Shape{600, 2048}, Shape{540, 3584}, Shape{2, 16000}, Shape{2, 8001}}) {
    const std::int64_t d = shape[1];
    compare(made(RmsNorm{1e-5}), {real("x", shape, 20), real("w", {d}, 21)});
    compare(made(RmsNorm{1e-5}), {real("x", shape, 22), real("w", {d}, 23), real("r", shape, 24)}, 1.5);
    compare(made(LayerNorm{1e-5}), {real("x", shape, 25), real("w", {d}, 26), real("b", {d}, 27)});
    compare(made(LayerNorm{1e-5}), {real("x", shape, 28), real("w", {d}, 29), real("b", {d}, 30), real("r", shape, 31)},
            1.5);
    const auto rstd = [&](std::uint64_t stream) {
      Input input = wide(real("rstd", {shape[0]}, stream));
      for (double& v : input.values) v = 1.5 + v;
      return input;
    };
    for (const bool sums : {false, true}) {
      const std::vector<std::size_t> absent = sums ? std::vector<std::size_t>{} : std::vector<std::size_t>{4, 5};
      compare(made(RmsNormGrad{}),
              {real("dy", shape, 32), real("r", shape, 33), real("w", {d}, 34), rstd(35), real("sum", shape, 36),
               wide(real("dw", {d}, 37))},
              2, absent);
      compare(made(LayerNormGrad{}),
              {real("dy", shape, 38), real("r", shape, 39), real("w", {d}, 40), wide(real("mean", {shape[0]}, 41)),
               rstd(42), real("sum", shape, 43), wide(real("dw", {d}, 44)), wide(real("db", {d}, 45))},
              2, sums ? std::vector<std::size_t>{} : std::vector<std::size_t>{5, 6, 7});
    }
  }
}

TEST_F(CudaOps, QkNorm) {
  const std::int64_t rows = 301, heads = 6, key_heads = 2;
  for (const std::int64_t dim : {16, 64, 128, 24}) {
    const Shape packed{rows, (heads + 2 * key_heads) * dim};
    compare(made(QkNorm{heads, key_heads, dim, 1e-6}),
            {real("qkv", packed, 50), real("qw", {dim}, 51), real("kw", {dim}, 52)});
    Input q_rstd = wide(real("qr", {rows, heads}, 53)), k_rstd = wide(real("kr", {rows, key_heads}, 54));
    for (const bool sums : {false, true}) {
      compare(made(QkNormGrad{heads, key_heads, dim}),
              {real("dy", packed, 55), real("qkv", packed, 56), real("qw", {dim}, 57), real("kw", {dim}, 58), q_rstd,
               k_rstd, wide(real("qs", {dim}, 59)), wide(real("ks", {dim}, 60))},
              2, sums ? std::vector<std::size_t>{} : std::vector<std::size_t>{6, 7});
    }
  }
}

TEST_F(CudaOps, Embedding) {
  for (const std::int64_t width : {1, 7, 64, 896}) {
    const std::int64_t tokens = 515;
    compare(made(Embedding{}), {ints("ids", tokens, 100, 61), real("table", {100, width}, 62)});
    compare(made(Embedding{}), {ints("ids", tokens, 100, 63), real("table", {100, width}, 64),
                                ints("at", tokens, 32, 65), real("positions", {32, width}, 66)});
    for (const std::uint64_t used : {1ULL, 3ULL, 16ULL, 100ULL}) {  // one id for all tokens, and many
      compare(made(EmbeddingGrad{100, 2}),
              {real("dx", {tokens, width}, 67), ints("ids", tokens, used, 68), wide(real("sum", {100, width}, 69))});
      compare(made(EmbeddingGrad{100, -1}),
              {real("dx", {tokens, width}, 70), ints("ids", tokens, used, 71), wide(real("sum", {100, width}, 72))}, 1,
              {2});
    }
  }
}

TEST_F(CudaOps, Products) {
  struct Case {
    std::int64_t tokens, in, out;
  };
  for (const Case& c : {Case{64, 64, 64}, Case{24, 40, 56}, Case{333, 128, 48}, Case{8, 896, 1152}}) {
    for (const bool transposed : {false, true}) {
      const Shape weight = transposed ? Shape{c.in, c.out} : Shape{c.out, c.in};
      const Shape x{c.tokens, c.in}, y{c.tokens, c.out};
      compare(made(Linear{transposed}), {real("x", x, 80), real("w", weight, 81), real("b", {c.out}, 82)});
      compare(made(Linear{transposed}), {real("x", x, 83), real("w", weight, 84)});
      compare(made(Linear{transposed, Activation::kGeluTanh, true}),
              {real("x", x, 85), real("w", weight, 86), real("b", {c.out}, 87)});
      compare(made(Linear{transposed, Activation::kGeluErf}),
              {real("x", x, 88), real("w", weight, 89), real("b", {c.out}, 90)});
      compare(made(LinearInputGrad{transposed}), {real("dy", y, 91), real("w", weight, 92)});
      compare(made(LinearInputGrad{transposed}), {real("dy", y, 93), real("w", weight, 94), real("sum", x, 95)});
      compare(made(LinearWeightGrad{transposed}), {real("x", x, 96), real("dy", y, 97)});
      compare(made(LinearWeightGrad{transposed}),
              {real("x", x, 98), real("dy", y, 99), wide(real("sum", weight, 100))});
      compare(made(LinearWeightGrad{transposed, true}), {real("x", x, 104), real("dy", y, 105)});
      compare(made(LinearWeightGrad{transposed, true}),
              {real("x", x, 106), real("dy", y, 107), real("sum", weight, 108)});
    }
    compare(made(BiasGrad{}), {real("dy", {c.tokens, c.out}, 101)}, 5);
    compare(made(BiasGrad{}), {real("dy", {c.tokens, c.out}, 102), wide(real("sum", {c.out}, 103))}, 5);
  }
}

TEST_F(CudaOps, CrossEntropy) {
  for (const std::int64_t vocab : {8, 37, 96, 1000, 5003}) {
    for (const std::int64_t chunk : {0, 16, 40}) {
      for (const double extra : {0.0, 0.1}) {
        const std::int64_t tokens = 75, dim = 64;
        CrossEntropyShape shape;
        shape.chunk_rows = chunk;
        shape.z_loss = extra / 100;
        shape.label_smoothing = extra;
        Input targets = ints("targets", tokens, static_cast<std::uint64_t>(vocab), 110);
        targets.values[3] = targets.values[40] = -1;
        Input scale{"scale", {DType::kF32, {1}}, {0.5}};
        scale.wide = true;
        compare(made(LinearCrossEntropy{shape}), {real("x", {tokens, dim}, 111), real("w", {vocab, dim}, 112), targets},
                2);
        compare(made(LinearCrossEntropyGrad{shape}),
                {real("x", {tokens, dim}, 113), real("w", {vocab, dim}, 114), targets, scale}, 2);
        Input sum = wide(real("sum", {vocab, dim}, 117));
        compare(made(LinearCrossEntropyGrad{shape}),
                {real("x", {tokens, dim}, 115), real("w", {vocab, dim}, 116), targets, scale, sum}, 2);
      }
    }
  }
}

// Vocabularies of published models, whose rows stay on the multiprocessor or are too long for it; more rows than
// blocks.
TEST_F(CudaOps, CrossEntropyOfLongRows) {
  struct Case {
    std::int64_t vocab, tokens;
  };
  for (const Case& c : {Case{30011, 601}, Case{51866, 301}, Case{152001, 293}, Case{250002, 37}}) {
    const std::int64_t dim = 16;
    CrossEntropyShape shape;
    shape.label_smoothing = 0.1;
    shape.z_loss = 1e-4;
    Input targets = ints("targets", c.tokens, static_cast<std::uint64_t>(c.vocab), 130);
    targets.values[0] = static_cast<double>(c.vocab - 1);
    for (std::size_t t = 1; t < targets.values.size(); t += 5) targets.values[t] = -1;
    Input scale{"scale", {DType::kF32, {1}}, {0.5}};
    scale.wide = true;
    compare(made(LinearCrossEntropyGrad{shape}),
            {real("x", {c.tokens, dim}, 131), real("w", {c.vocab, dim}, 132), targets, scale}, 2);
  }
}

TEST_F(CudaOps, Compression) {
  for (const std::int64_t n : {1, 63, 512, 5000}) {
    compare(made(Convert{DType::kBF16}), {wide(real("x", {n}, 120))}, 2000);
    Input gradient = wide(real("g", {n}, 121)), error = wide(real("e", {n}, 122));
    compare(made(SignCompress{}), {gradient, error});
    // Four ranks' signs of one tensor.
    Graph graph;
    Tensors sources{{"g", gradient.values}, {"e", error.values}};
    graph.outputs = graph.add(made(SignCompress{}), {graph.add_source(Role::kBatch, "g", {DType::kF32, {n}}),
                                                     graph.add_source(Role::kMoment, "e", {DType::kF32, {n}})});
    const auto packed = testing::run_graph(cpu_, graph, sources).at("out0");
    Input four{"parts", {DType::kU8, {4 * static_cast<std::int64_t>(packed.size())}}, {}};
    for (int r = 0; r < 4; ++r) four.values.insert(four.values.end(), packed.begin(), packed.end());
    compare(made(SignSum{4, {DType::kF32, {n}}}), {four});
  }
}

TEST_F(CudaOps, NormAndOptimizer) {
  const std::vector<std::int64_t> sizes{1, 1000, 70000, 4096};
  std::vector<SquareSums::Part> parts;
  std::vector<std::int64_t> blocks;
  std::vector<Input> gradients;
  std::int64_t all = 0;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    const std::int64_t block = norm_block(sizes[t]);
    parts.push_back({all, block});
    blocks.push_back((sizes[t] + block - 1) / block);
    all += blocks.back();
    gradients.push_back(wide(real("g" + std::to_string(t), {sizes[t]}, 130 + t)));
  }
  compare(made(SquareSums{parts, all}), gradients);
  Input sums{"sums", {DType::kF64, {all + 1}}, {}};
  for (std::int64_t i = 0; i < all; ++i) sums.values.push_back(1.0 + static_cast<double>(i % 7));
  sums.values.push_back(0);
  Input scalars{"scalars", {DType::kF64, {kUpdateScalars}}, {1e-2, 3, 0.5, 0}};
  compare(made(NormOfSums{blocks, 1.0}), {sums, scalars}, 1e-9);
  Input norm{"norm", {DType::kF64, {kNormStatistics}}, {2, 0, 0.7, 0}};
  for (const auto kind : {OptimizerKind::kAdamW, OptimizerKind::kAdam, OptimizerKind::kSgd, OptimizerKind::kLion,
                          OptimizerKind::kAdagrad, OptimizerKind::kOpenAiAdam}) {
    OptimizerSettings settings;
    settings.kind = kind;
    settings.momentum = kind == OptimizerKind::kSgd ? 0.9 : 0;
    for (const bool masked : {false, true}) {
      for (const bool master : {false, true}) {
        std::vector<Input> inputs{scalars, norm};
        for (std::size_t t = 0; t < sizes.size(); ++t) {
          const auto name = [&](const char* what) { return what + std::to_string(t); };
          inputs.push_back(real(name("w"), {sizes[t]}, 140 + t));
          inputs.push_back(gradients[t]);
          if (masked) {
            for (std::size_t i = 0; i < inputs.back().values.size(); i += 3) inputs.back().values[i] = 0;
          }
          if (master) inputs.push_back(wide(real(name("p"), {sizes[t]}, 150 + t)));
          for (int m = 0; m < settings.moments(); ++m) {
            inputs.push_back(
                wide(real(name(m == 0 ? "m" : "v"), {sizes[t]}, 160 + 10 * static_cast<std::uint64_t>(m) + t)));
            for (double& v : inputs.back().values) v = std::abs(v);
          }
        }
        compare(made(OptimizerStep{settings, master, std::vector<float>(sizes.size(), 0.1F),
                                   std::vector<bool>(sizes.size(), masked)}),
                inputs, 2);
      }
    }
  }
}

// Gradients of the weights' type beside those of float32.
TEST_F(CudaOps, GradientsOfSixteenBits) {
  std::vector<SquareSums::Part> parts;
  std::vector<Input> gradients;
  const Input scalars{"scalars", {DType::kF64, {kUpdateScalars}}, {1e-2, 3, 1, 0}};
  const Input norm{"norm", {DType::kF64, {kNormStatistics}}, {2, 0, 0.7, 0}};
  std::vector<Input> inputs{scalars, norm};
  std::int64_t all = 0;
  for (std::uint64_t t = 0; t < 120; ++t) {
    const auto n = static_cast<std::int64_t>(t % 3 == 0 ? 4 * (t * t * 7 % 911 + 1) : 2 * t + 1);
    parts.push_back({all, norm_block(n)});
    all += (n + norm_block(n) - 1) / norm_block(n);
    gradients.push_back(real("g" + std::to_string(t), {n}, 1000 + t));
    if (t % 2 == 0) gradients.back() = wide(gradients.back());
    inputs.push_back(real("w" + std::to_string(t), {n}, 2000 + t));
    inputs.push_back(gradients.back());
    inputs.push_back(wide(real("p" + std::to_string(t), {n}, 2500 + t)));
    inputs.push_back(wide(real("m" + std::to_string(t), {n}, 3000 + t)));
    inputs.push_back(wide(real("v" + std::to_string(t), {n}, 4000 + t)));
    for (double& v : inputs.back().values) v = std::abs(v);
  }
  compare(made(SquareSums{parts, all}), gradients);
  compare(made(OptimizerStep{OptimizerSettings{}, true, std::vector<float>(120, 0.1F)}), inputs, 2);
  for (const std::int64_t n : {1, 5003, 65536})
    compare(made(AccumulateGradients{}), {real("x", {n}, 180), real("y", {n}, 181)});
}

// More tensors than one launch takes, of all sizes and with what differs between them.
TEST_F(CudaOps, ManyTensorsAreUpdatedAtOnce) {
  std::vector<SquareSums::Part> parts;
  std::vector<Input> gradients;
  const Input scalars{"scalars", {DType::kF64, {kUpdateScalars}}, {1e-2, 3, 1, 0}};
  const Input norm{"norm", {DType::kF64, {kNormStatistics}}, {2, 0, 0.7, 0}};
  std::vector<Input> inputs{scalars, norm};
  std::vector<float> decays;
  std::vector<bool> masked;
  std::vector<OptimizerStep::Origin> origins;
  std::int64_t all = 0;
  for (std::uint64_t t = 0; t < 230; ++t) {
    // Each second one is good for wide loads.
    const auto n = static_cast<std::int64_t>(t % 2 == 0 ? 4 * (t * t * 7 % 911 + 1) : 2 * t + 1);
    parts.push_back({all, norm_block(n)});
    all += (n + norm_block(n) - 1) / norm_block(n);
    gradients.push_back(wide(real("g" + std::to_string(t), {n}, 1000 + t)));
    inputs.push_back(real("w" + std::to_string(t), {n}, 2000 + t));
    inputs.push_back(gradients.back());
    inputs.push_back(wide(real("m" + std::to_string(t), {n}, 3000 + t)));
    inputs.push_back(wide(real("v" + std::to_string(t), {n}, 4000 + t)));
    for (double& v : inputs.back().values) v = std::abs(v);
    decays.push_back(t % 3 == 0 ? 0.0F : 0.01F * static_cast<float>(t));
    masked.push_back(t % 5 == 0);
    origins.push_back({static_cast<std::uint32_t>(t), static_cast<std::int64_t>(t % 7)});
  }
  compare(made(SquareSums{parts, all}), gradients);
  compare(made(OptimizerStep{OptimizerSettings{}, false, decays, masked, origins}), inputs, 2);
}

// Both devices round with the same random bits.
TEST_F(CudaOps, StateOfSixteenBits) {
  const std::int64_t n = 5003;
  const Input scalars{"scalars", {DType::kF64, {kUpdateScalars}}, {1e-2, 3, 1, 0}};
  const Input norm{"norm", {DType::kF64, {kNormStatistics}}, {2, 0, 1, 0}};
  OptimizerSettings settings;
  settings.moment_dtype = DType::kBF16;
  settings.seed = 0x123456789abcdefULL;
  for (const bool master : {false, true}) {
    std::vector<Input> inputs{scalars, norm, real("w", {n}, 190), wide(real("g", {n}, 191))};
    if (master) inputs.push_back(wide(real("p", {n}, 192)));
    inputs.push_back(real("m", {n}, 193));
    inputs.push_back(real("v", {n}, 194));
    for (double& v : inputs.back().values) v = std::abs(v);
    for (std::size_t i = inputs.size() - 2; i < inputs.size(); ++i) inputs[i].spec.dtype = DType::kBF16;
    const auto op = made(OptimizerStep{settings, master, {0.1F}, {false}, {{3, 64}}});
    const Tensors expected = run(cpu_, *op, op, inputs, DType::kBF16, {});
    const Tensors got = run(*device_, *op, op, inputs, DType::kBF16, {});
    for (const auto& [name, values] : expected) {
      const double error = relative_error(got.at(name), values);
      EXPECT_TRUE(error < 2e-4) << name << ": " << error;  // an ulp where the arithmetic's last bit differs
    }
  }
}

TEST_F(CudaOps, AGradientThatIsNotFiniteIsCounted) {
  Input gradient = wide(real("g", {1000}, 170));
  gradient.values[17] = INFINITY;
  gradient.values[801] = NAN;
  const std::int64_t blocks = (1000 + norm_block(1000) - 1) / norm_block(1000);
  const auto op = made(SquareSums{{{0, norm_block(1000)}}, blocks});
  const Tensors got = run(*device_, *op, op, {gradient}, DType::kF32, {});
  EXPECT_EQ(got.at("out0").back(), 2);
}

TEST_F(CudaOps, Attention) {
  const std::int64_t heads = 4, key_heads = 2;
  for (const std::int64_t dim : {16, 64}) {
    for (const bool whole : {true, false}) {
      const std::int64_t tokens = 192, row = 64;
      Input start{"start", {DType::kI32, {tokens}}, {}};
      for (std::int64_t t = 0; t < tokens; ++t)
        start.values.push_back(static_cast<double>(whole ? t - t % row : (t < 50 ? 0 : t - t % row)));
      AttentionShape shape{heads, key_heads, dim, 1 / std::sqrt(static_cast<double>(dim))};
      if (whole) shape.row_tokens = row;
      device_->set_whole_rows(whole);
      const Input qkv = real("qkv", {tokens, (heads + 2 * key_heads) * dim}, 180);
      compare(made(Attention{shape}), {qkv, start}, 1, {},
              {"out1"});  // the order of the log-sum-exp is the device's own
      // The gradient needs the output and the log-sum-exp that belong to the input: both passes in one graph.
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        const auto both = [&](Device& device, DType type) {
          Graph graph;
          const ValueId x = graph.add_source(Role::kBatch, "qkv", {type, qkv.spec.shape});
          const ValueId s = graph.add_source(Role::kBatch, "start", start.spec);
          const ValueId d = graph.add_source(Role::kBatch, "dy", {type, {tokens, heads * dim}});
          const auto made_values = graph.add_op(Attention{shape}, {x, s});
          graph.outputs = graph.add_op(AttentionGrad{shape}, {d, x, made_values[0], made_values[1], s});
          Tensors sources{{"qkv", testing::from_bytes(dtype, testing::to_bytes(dtype, qkv.values))},
                          {"start", start.values},
                          {"dy", testing::from_bytes(dtype, testing::to_bytes(dtype, testing::random_values(
                                                                                         tokens * heads * dim, 181)))}};
          return testing::run_graph(device, graph, sources).at("out0");
        };
        const double error = relative_error(both(*device_, dtype), both(cpu_, DType::kF32));
        EXPECT_TRUE(error < (dtype == DType::kF32 ? 5e-6 : (dtype == DType::kF16 ? 3e-3 : 2e-2)))
            << name_of(dtype) << " " << dim << (whole ? " whole rows: " : " documents: ") << error;
      }
    }
  }
}

}  // namespace
}  // namespace convoy
