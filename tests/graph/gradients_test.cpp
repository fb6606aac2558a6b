// Every operation's backward rule against finite differences in float64.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/cpu_device.h"
#include "graph/ops/activation.h"
#include "graph/ops/attention.h"
#include "graph/ops/columns.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/embedding.h"
#include "graph/ops/linear.h"
#include "graph/ops/linear_cross_entropy.h"
#include "graph/ops/norm.h"
#include "graph/ops/rotary.h"
#include "passes/differentiate.h"
#include "support/graph_runner.h"

namespace convoy::testing {
namespace {

class Gradients : public ::testing::Test {
 protected:
  CpuDevice device_;
};

struct Builder {
  Graph& graph;
  Tensors& sources;
  std::uint64_t stream = 0;

  ValueId floats(const std::string& name, const Shape& shape, Role role = Role::kBatch, double offset = 0) {
    std::vector<double> values = random_values(shape.numel(), ++stream);
    for (double& each : values) each += offset;
    sources[name] = values;
    return graph.add_source(role, name, {DType::kF64, shape});
  }
  ValueId table(const std::string& name, const Shape& shape) {
    sources[name] = random_values(shape.numel(), ++stream);
    return graph.add_source(Role::kBatch, name, {DType::kF32, shape});
  }
  ValueId ints(const std::string& name, const std::vector<double>& values, DType dtype = DType::kI32) {
    sources[name] = values;
    return graph.add_source(Role::kBatch, name, {dtype, {static_cast<std::int64_t>(values.size())}});
  }
};

TEST_F(Gradients, Linear) {
  for (const bool transposed : {false, true}) {
    for (const bool bias : {false, true}) {
      check_gradients(device_,
                      {[&](Graph& g, Tensors& t) {
                         Builder b{g, t};
                         const ValueId x = b.floats("x", {5, 7});
                         const ValueId w = b.floats("w", transposed ? Shape{7, 6} : Shape{6, 7}, Role::kWeight);
                         const ValueId c = bias ? b.floats("b", {6}, Role::kWeight) : kNoValue;
                         return g.add_op(Linear{transposed}, {x, w, c})[0];
                       },
                       bias ? std::vector<std::string>{"x", "w", "b"} : std::vector<std::string>{"x", "w"}});
    }
  }
}

TEST_F(Gradients, LinearUsedTwiceSumsItsGradients) {
  check_gradients(device_, {[](Graph& g, Tensors& t) {
                              Builder b{g, t};
                              const ValueId x = b.floats("x", {5, 6});
                              const ValueId w = b.floats("w", {6, 6}, Role::kWeight);
                              const ValueId once = g.add_op(Linear{}, {x, w})[0];
                              return g.add_op(Add{}, {x, g.add_op(Linear{}, {once, w})[0]})[0];
                            },
                            {"x", "w"}});
}

TEST_F(Gradients, AddColumns) {
  check_gradients(device_, {[](Graph& g, Tensors& t) {
                              Builder b{g, t};
                              return g.add_op(AddColumns{3}, {b.floats("x", {5, 9}), b.floats("part", {5, 4})})[0];
                            },
                            {"x", "part"}});
}

TEST_F(Gradients, SwiGlu) {
  check_gradients(device_, {[](Graph& g, Tensors& t) {
                              return g.add_op(SwiGlu{}, {Builder{g, t}.floats("x", {5, 14})})[0];
                            },
                            {"x"}});
}

TEST_F(Gradients, Gelu) {
  for (const bool tanh : {false, true}) {
    check_gradients(device_, {[&](Graph& g, Tensors& t) {
                                return g.add_op(Gelu{tanh}, {Builder{g, t}.floats("x", {5, 14})})[0];
                              },
                              {"x"}});
  }
}

TEST_F(Gradients, AddAndScale) {
  check_gradients(device_, {[](Graph& g, Tensors& t) {
                              Builder b{g, t};
                              const ValueId x = b.floats("x", {3, 5});
                              const ValueId y = b.floats("y", {3, 5});
                              return g.add_op(Add{}, {g.add_op(Scale{-1.75}, {x})[0], g.add_op(Add{}, {x, y})[0]})[0];
                            },
                            {"x", "y"}});
}

TEST_F(Gradients, Dropout) {
  check_gradients(device_, {[](Graph& g, Tensors& t) {
                              Builder b{g, t};
                              const ValueId x = b.floats("x", {6, 9});
                              const ValueId keys = b.ints("keys", {11, 12, 13, 14, 15, 16}, DType::kI64);
                              return g.add_op(Dropout{0.4f, 3, 2}, {x, keys})[0];
                            },
                            {"x"}});
}

TEST_F(Gradients, RmsNorm) {
  check_gradients(device_, {[](Graph& g, Tensors& t) {
                              Builder b{g, t};
                              const ValueId x = b.floats("x", {5, 16});
                              const ValueId n = g.add_op(RmsNorm{1e-5}, {x, b.floats("w", {16}, Role::kWeight, 1)})[0];
                              return g.add_op(Add{}, {x, n})[0];  // the gradient of x has another part
                            },
                            {"x", "w"}});
}

TEST_F(Gradients, LayerNorm) {
  check_gradients(device_,
                  {[](Graph& g, Tensors& t) {
                     Builder b{g, t};
                     const ValueId x = b.floats("x", {5, 16});
                     const ValueId w = b.floats("w", {16}, Role::kWeight, 1);
                     const ValueId n = g.add_op(LayerNorm{1e-5}, {x, w, b.floats("b", {16}, Role::kWeight)})[0];
                     return g.add_op(Add{}, {x, n})[0];
                   },
                   {"x", "w", "b"}});
}

TEST_F(Gradients, QkNorm) {
  check_gradients(device_, {[](Graph& g, Tensors& t) {
                              Builder b{g, t};
                              const ValueId x = b.floats("x", {5, (3 + 2) * 8});
                              const ValueId q = b.floats("q", {8}, Role::kWeight, 1);
                              const ValueId k = b.floats("k", {8}, Role::kWeight, 1);
                              return g.add_op(QkNorm{3, 1, 8, 1e-6}, {x, q, k})[0];
                            },
                            {"x", "q", "k"}});
}

TEST_F(Gradients, Rotary) {
  for (const RotaryPairing pairing : {RotaryPairing::kHalf, RotaryPairing::kInterleaved}) {
    for (const std::int64_t rotated : {8, 4}) {
      check_gradients(device_,
                      {[&](Graph& g, Tensors& t) {
                         Builder b{g, t};
                         const ValueId x = b.floats("x", {4, 4 * 8});
                         const ValueId c = b.table("cos", {6, rotated / 2});
                         const ValueId s = b.table("sin", {6, rotated / 2});
                         return g.add_op(Rotary{3, 8, rotated, pairing}, {x, c, s, b.ints("p", {0, 1, 5, 2})})[0];
                       },
                       {"x"}});
    }
  }
}

TEST_F(Gradients, Attention) {
  AttentionShape shape;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 8;
  shape.scale = 0.35;
  for (const bool causal : {true, false}) {
    for (const std::int64_t window : {0, 3}) {
      if (!causal && window > 0) continue;
      for (const float dropout : {0.0f, 0.3f}) {
        shape.causal = causal;
        shape.window = window;
        shape.dropout = dropout;
        check_gradients(device_,
                        {[&](Graph& g, Tensors& t) {
                           Builder b{g, t};
                           const ValueId x = b.floats("x", {9, 8 * 8});
                           const ValueId start = b.ints("start", {0, 0, 0, 0, 0, 5, 5, 5, 8});
                           const ValueId keys = b.ints("keys", {21, 22, 23, 24, 25, 26, 27, 28, 29}, DType::kI64);
                           return g.add_op(Attention{shape}, {x, start, keys})[0];
                         },
                         {"x"}});
      }
    }
  }
}

TEST_F(Gradients, Embedding) {
  for (const std::int64_t pad :
       {std::int64_t{-1}, std::int64_t{9}}) {  // row 9 is not looked up: padding_idx changes the gradient by design
    check_gradients(device_, {[&](Graph& g, Tensors& t) {
                                Builder b{g, t};
                                const ValueId table = b.floats("table", {10, 6}, Role::kWeight);
                                const ValueId positions = b.floats("positions", {5, 6}, Role::kWeight);
                                return g.add_op(Embedding{pad}, {b.ints("ids", {3, 1, 3, 0, 3}), table,
                                                                 b.ints("p", {0, 1, 2, 0, 1}), positions})[0];
                              },
                              {"table", "positions"}});
  }
}

TEST_F(Gradients, PadRowGetsNoGradient) {
  Graph g;
  Tensors t;
  Builder b{g, t};
  const ValueId table = b.floats("table", {4, 3}, Role::kWeight);
  const ValueId y = g.add_op(Embedding{2}, {b.ints("ids", {2, 1, 2}), table})[0];
  const ValueId seed = g.add_source(Role::kBatch, "seed", g.spec(y));
  t["seed"] = std::vector<double>(9, 1.0);
  g.outputs = {y};
  differentiate(g, {{{y, seed}}, {table}, false});
  EXPECT_EQ(run_graph(device_, g, t).at("grad.table"), (std::vector<double>{0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0}));
}

TEST_F(Gradients, LinearCrossEntropy) {
  for (const double smoothing : {0.0, 0.1}) {
    for (const double z_loss : {0.0, 0.05}) {
      CrossEntropyShape shape;
      shape.chunk_rows = 4;  // several chunks, the last not full
      shape.label_smoothing = smoothing;
      shape.z_loss = z_loss;
      Graph forward;
      Tensors t;
      Builder b{forward, t};
      const ValueId x = b.floats("x", {9, 6});
      const ValueId w = b.floats("w", {11, 6}, Role::kWeight);
      const ValueId y =
          forward.add_op(LinearCrossEntropy{shape}, {x, w, b.ints("targets", {3, -1, 0, 10, 5, -1, 7, 7, 2})})[0];
      forward.outputs = {y};
      const auto loss = [&](const Tensors& at) { return run_graph(device_, forward, at).at("out0")[kLossSum]; };
      Graph graph = forward;
      const ValueId scale = graph.add_source(Role::kBatch, "scale", {DType::kF64, {1}});
      differentiate(graph, {{{y, scale}}, {x, w}, false});
      Tensors at = t;
      at["scale"] = {0.5};
      const Tensors result = run_graph(device_, graph, at);
      EXPECT_NEAR(result.at("out0")[kLossSum], loss(t), 1e-12);
      EXPECT_EQ(result.at("out0")[kTargetCount], 7);
      for (const std::string name : {"x", "w"}) {
        const std::vector<double>& gradient = result.at("grad." + name);
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          Tensors plus = t, minus = t;
          plus[name][i] += 1e-5;
          minus[name][i] -= 1e-5;
          EXPECT_NEAR(0.5 * (loss(plus) - loss(minus)) / 2e-5, gradient[i], 1e-7) << name << i;
        }
      }
    }
  }
}

TEST_F(Gradients, AnUnusedWeightGetsZeros) {
  Graph g;
  Tensors t;
  Builder b{g, t};
  const ValueId x = b.floats("x", {2, 3});
  const ValueId unused = b.floats("unused", {4}, Role::kWeight);
  const ValueId y = g.add_op(Scale{2.0}, {x})[0];
  const ValueId seed = g.add_source(Role::kBatch, "seed", g.spec(y));
  t["seed"] = std::vector<double>(6, 1.0);
  g.outputs = {y};
  differentiate(g, {{{y, seed}}, {x, unused}, false});
  const Tensors result = run_graph(device_, g, t);
  EXPECT_EQ(result.at("grad.unused"), std::vector<double>(4, 0.0));
  EXPECT_EQ(result.at("grad.x"), std::vector<double>(6, 2.0));
}

}  // namespace
}  // namespace convoy::testing
