// Gradients of matrices in the run's 16-bit type.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/parallel.h"
#include "graph/ops/linear.h"
#include "models/lora.h"
#include "plan/memory_report.h"
#include "support/graph_runner.h"
#include "support/test_device.h"
#include "train/engine.h"
#include "train/tiny_model.h"

namespace convoy {
namespace {

using testing::random_batch;
using testing::tiny_config;

constexpr std::int64_t kVocab = 97;

TrainShape shape_of(DType dtype, bool narrow) {
  TrainShape shape;
  shape.rows = 2;
  shape.seq = 32;
  shape.dtype = dtype;
  shape.narrow_gradients = narrow;
  shape.weight_decay = 0.1;
  shape.max_grad_norm = 1;
  shape.loss.chunk_rows = 16;
  shape.seed = 9;
  return shape;
}

// By parameter, after one global step's micro-batches.
std::vector<std::vector<double>> gradients(const Model& model, const TrainShape& shape) {
  const std::unique_ptr<Device> device = testing::test_device();
  Engine engine(*device, model, shape);
  engine.store().initialize(5);
  for (std::int64_t m = 0; m < shape.accumulation; ++m)
    engine.micro_step(random_batch(shape.rows, shape.seq, kVocab, m * shape.rows).view(), 0.01);
  std::vector<std::vector<double>> all;
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    all.emplace_back();
    if (!model.parameters()[p].trainable) continue;
    const DType dtype = engine.programs().layout.find(Role::kGradient, model.parameters()[p].name).spec.dtype;
    all.back() = testing::from_bytes(dtype, engine.gradient(p));
  }
  return all;
}

class NarrowFamilies : public ::testing::TestWithParam<std::string> {
 protected:
  static std::string family() { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(All, NarrowFamilies, ::testing::ValuesIn(testing::tiny_families()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');  // as GoogleTest wants
  return name;
});

TEST_P(NarrowFamilies, MatricesOfProductsAreNarrowAndTheRestIsNot) {
  const auto model = make_model(tiny_config(family()), "test");
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    TrainShape shape = shape_of(dtype, true);
    testing::set_audio(family(), shape);
    const std::unique_ptr<Device> device = testing::test_device();
    const ProgramSet set = make_programs(*model, shape, *device);
    // What the program of a micro-batch writes with weight products, and with anything else.
    std::set<std::size_t> by_products, by_others;
    for (const Instruction& instruction : set.micro.instructions) {
      const auto* product = dynamic_cast<const LinearWeightGrad*>(instruction.op.get());
      for (const BufferRef& output : instruction.outputs) {
        if (output.present && output.arena == Role::kGradient)
          (product != nullptr && product->narrow ? by_products : by_others).insert(output.offset);
      }
    }
    std::size_t narrow = 0;
    for (const Parameter& parameter : model->parameters()) {
      const Slot& slot = set.layout.find(Role::kGradient, parameter.name);
      const bool products_only = by_products.contains(slot.offset) && !by_others.contains(slot.offset);
      EXPECT_EQ(slot.spec.dtype, products_only ? dtype : DType::kF32) << parameter.name;
      if (products_only) ++narrow;
      if (parameter.shape.rank() < 2) EXPECT_EQ(slot.spec.dtype, DType::kF32) << parameter.name;
    }
    EXPECT_GE(narrow, 2U);
    // They fill the arena in two runs, one after the other.
    ASSERT_EQ(set.gradient_runs.size(), 2U);
    EXPECT_EQ(set.gradient_runs[0].offset, 0U);
    EXPECT_EQ(set.gradient_runs[0].bytes, set.gradient_runs[1].offset);
    EXPECT_EQ(set.gradient_runs[1].offset + set.gradient_runs[1].bytes, set.layout.bytes(Role::kGradient));
    for (const ProgramSet::GradientRun& run : set.gradient_runs) {
      for (const Slot& slot : set.layout.slots(Role::kGradient)) {
        const bool inside = slot.offset >= run.offset && slot.offset < run.offset + run.bytes;
        EXPECT_EQ(inside, slot.spec.dtype == run.dtype) << slot.name;
      }
    }
  }
}

TEST_P(NarrowFamilies, OfOneMicroBatchTheyAreTheWideOnesRounded) {
  const auto model = make_model(tiny_config(family()), "test");
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    TrainShape shape = shape_of(dtype, false);
    testing::set_audio(family(), shape);
    const auto wide = gradients(*model, shape);
    shape.narrow_gradients = true;
    const auto narrow = gradients(*model, shape);
    const double ulp = dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
    const double least = dtype == DType::kBF16 ? 1e-30 : 0x1p-25;  // half a step of the subnormal numbers
    for (std::size_t p = 0; p < wide.size(); ++p) {
      ASSERT_EQ(wide[p].size(), narrow[p].size());
      for (std::size_t i = 0; i < wide[p].size(); ++i) {
        ASSERT_NEAR(narrow[p][i], wide[p][i], ulp * std::abs(wide[p][i]) + least)
            << model->parameters()[p].name << " " << i;
      }
    }
  }
}

TEST_P(NarrowFamilies, TheirTreeLosesLittleAndOneBufferLittleMore) {
  const auto model = make_model(tiny_config(family()), "test");
  TrainShape shape = shape_of(DType::kBF16, false);
  testing::set_audio(family(), shape);
  shape.accumulation = 16;
  const auto wide = gradients(*model, shape);
  shape.narrow_gradients = true;
  for (const bool tree : {true, false}) {
    shape.deterministic = tree;
    const auto narrow = gradients(*model, shape);
    double error = 0, norm = 0;
    for (std::size_t p = 0; p < wide.size(); ++p) {
      for (std::size_t i = 0; i < wide[p].size(); ++i) {
        error += std::pow(narrow[p][i] - wide[p][i], 2);
        norm += std::pow(wide[p][i], 2);
      }
    }
    EXPECT_LT(std::sqrt(error / norm), 0x1p-8) << (tree ? "tree" : "one buffer");
    EXPECT_GT(error, 0);
  }
}

TEST_P(NarrowFamilies, PlannedBytesEqualTheHighWaterMark) {
  for (const bool tree : {true, false}) {
    TrainShape shape = shape_of(DType::kBF16, true);
    testing::set_audio(family(), shape);
    shape.deterministic = tree;
    shape.accumulation = 3;
    const auto model = make_model(tiny_config(family()), "test");
    const std::unique_ptr<Device> device = testing::test_device();
    Engine engine(*device, *model, shape);
    engine.store().initialize(5);
    for (std::int64_t m = 0; m < 3; ++m) engine.micro_step(random_batch(2, shape.seq, kVocab, 2 * m).view(), 0.01);
    engine.update(1e-3, 1);
    const ProgramSet& set = engine.programs();
    const std::size_t planned = memory_report(set.sizes, set.activation_lower_bound).total;
    EXPECT_EQ(device->memory().peak, planned);
    const std::unique_ptr<Device> planner = testing::test_device();
    shape.narrow_gradients = false;
    const ProgramSet wide = make_programs(*model, shape, *planner);
    EXPECT_LT(planned, memory_report(wide.sizes, wide.activation_lower_bound).total);
  }
}

// Losses of a model that sees the same batches again and again.
std::vector<double> overfit(const std::string& family, bool narrow, DType dtype, bool fp8 = false) {
  TrainShape shape = shape_of(dtype, narrow);
  shape.accumulation = 4;
  shape.fp8 = fp8;
  const auto model = make_model(tiny_config(family), "test");
  const std::unique_ptr<Device> device = testing::test_device();
  Engine engine(*device, *model, shape);
  engine.store().initialize(5);
  std::vector<double> losses;
  for (int step = 1; step <= 60; ++step) {
    LossTotals totals;
    for (std::int64_t m = 0; m < shape.accumulation; ++m)
      totals += engine.micro_step(random_batch(shape.rows, shape.seq, kVocab, m * shape.rows).view(), 1.0 / 256);
    losses.push_back(totals.mean());
    EXPECT_FALSE(engine.update(3e-3, step).skipped);
  }
  return losses;
}

TEST(NarrowTraining, LearnsAsWithWideOnes) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const auto wide = overfit("llama", false, dtype), narrow = overfit("llama", true, dtype);
    EXPECT_LT(wide.back(), 0.7 * wide.front());
    EXPECT_NE(narrow, wide);
    for (std::size_t step = 0; step < wide.size(); ++step)
      EXPECT_NEAR(narrow[step], wide[step], 0.02 * wide[step]) << name_of(dtype) << " step " << step;
  }
}

TEST(NarrowTraining, BesideProductsInEightBits) {
  const auto wide = overfit("qwen2", false, DType::kBF16, true), narrow = overfit("qwen2", true, DType::kBF16, true);
  EXPECT_NE(narrow, wide);
  EXPECT_NEAR(narrow[0], wide[0], 1e-6);
  EXPECT_NEAR(narrow.back(), wide.back(), 0.03 * wide.back());
}

TEST(NarrowTraining, AdaptersAreMatricesToo) {
  LoraConfig lora;
  lora.rank = 4;
  const auto model = add_lora(make_model(tiny_config("qwen2"), "test"), lora, "test");
  TrainShape shape = shape_of(DType::kBF16, true);
  const std::unique_ptr<Device> device = testing::test_device();
  const ProgramSet set = make_programs(*model, shape, *device);
  ASSERT_EQ(set.gradient_runs.size(), 1U);
  EXPECT_EQ(set.gradient_runs[0].dtype, DType::kBF16);
}

TEST(NarrowTraining, AGradientBeyondTheTypesRangeSkipsTheStep) {
  const auto model = make_model(tiny_config("llama"), "test");
  const std::unique_ptr<Device> device = testing::test_device();
  Engine engine(*device, *model, shape_of(DType::kF16, true));
  engine.store().initialize(5);
  engine.micro_step(random_batch(2, 32, kVocab).view(), 0.01);
  EXPECT_FALSE(engine.update(1e-3, 1).skipped);
  engine.micro_step(random_batch(2, 32, kVocab).view(), 1e6);
  EXPECT_TRUE(engine.update(1e-3, 2).skipped);
}

}  // namespace
}  // namespace convoy
