#include "plan/model_flops.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "models/model.h"
#include "plan/program_set.h"

namespace convoy {
namespace {

struct NoWorkspace final : WorkspaceSizes {
  std::size_t workspace(const Op&, Specs, std::span<const TensorSpec>) const override { return 0; }
};

TrainShape shape_of(std::int64_t rows, std::int64_t seq, RecomputeMode recompute = RecomputeMode::kNone) {
  TrainShape shape;
  shape.rows = rows;
  shape.seq = seq;
  shape.dtype = DType::kBF16;
  shape.recompute = recompute;
  return shape;
}

double flops(const Model& model, const TrainShape& shape) {
  return model_flops(make_programs(model, shape, NoWorkspace()).micro);
}

std::unique_ptr<Model> bench_model(const std::string& name) {
  const std::string path = std::string(CONVOY_SOURCE_DIR) + "/bench/configs/" + name + ".json";
  return make_model(read_json(path), path);
}

TEST(ModelFlops, AreLinearInRowsAndDoNotCountRecomputation) {
  const auto model = bench_model("qwen2.5-0.5b");
  const double one = flops(*model, shape_of(1, 512));
  EXPECT_DOUBLE_EQ(one, make_programs(*model, shape_of(1, 512), NoWorkspace()).micro.cost().flops);
  EXPECT_NEAR(flops(*model, shape_of(4, 512)) / (4 * one), 1, 1e-12);
  EXPECT_NEAR(flops(*model, shape_of(4, 512, RecomputeMode::kFull)) / (4 * one), 1, 1e-12);
  EXPECT_NEAR(flops(*model, shape_of(4, 512, RecomputeMode::kSelective)) / (4 * one), 1, 1e-12);
  EXPECT_GT(make_programs(*model, shape_of(4, 512, RecomputeMode::kFull), NoWorkspace()).micro.cost().flops,
            4 * one * 1.1);
}

// The shapes that benchmarks use: the published numbers of parameters, and the arithmetic by formula.
TEST(ModelFlops, OfTheBenchmarkModels) {
  struct Case {
    const char* name;
    std::int64_t parameters;
    double layers, width, heads_width, kv_width, mlp, vocabulary;
  };
  const Case cases[] = {{"qwen2.5-0.5b", 494032768, 24, 896, 896, 128, 4864, 151936},
                        {"qwen2.5-1.5b", 1543714304, 28, 1536, 1536, 256, 8960, 151936},
                        {"qwen2.5-7b", 7615616512, 28, 3584, 3584, 512, 18944, 152064},
                        {"glm-4-9b-1m", 9483857920, 40, 4096, 4096, 512, 13696, 151552}};
  for (const Case& c : cases) {
    const auto model = bench_model(c.name);
    EXPECT_EQ(model->parameter_count(), c.parameters) << c.name;
    const double seq = 4096;
    const double products =
        2 * (c.layers * (2 * c.width * c.heads_width + 2 * c.width * c.kv_width + 3 * c.width * c.mlp) +
             c.vocabulary * c.width);
    const double attention = 2 * c.layers * seq * c.heads_width;  // of the forward pass, causal
    const double expected = 3 * products + 3.5 * attention;
    const double counted = flops(*model, shape_of(2, 4096)) / (2 * seq);
    EXPECT_NEAR(counted / expected, 1, 0.003) << c.name;  // norms and activations are counted too
  }
}

}  // namespace
}  // namespace convoy
