// The pass that puts products in 8 bits: what the program looks like and what it takes.
#include "passes/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "graph/ops/fp8.h"
#include "models/lora.h"
#include "plan/fit_recompute.h"
#include "plan/fp8_products.h"
#include "plan/program_set.h"

namespace convoy {
namespace {

using Kind = Fp8Product::Kind;

class NoWorkspace final : public WorkspaceSizes {
 public:
  std::size_t workspace(const Op& /*op*/, Specs /*inputs*/, std::span<const TensorSpec> /*outputs*/) const override {
    return 0;
  }
};

Json qwen2(std::int64_t layers, std::int64_t hidden = 64) {
  return Json{{"model_type", "qwen2"},    {"vocab_size", 512},           {"hidden_size", hidden},
              {"intermediate_size", 160}, {"num_hidden_layers", layers}, {"num_attention_heads", 4},
              {"num_key_value_heads", 2}, {"tie_word_embeddings", true}};
}

TrainShape shape_of(bool fp8) {
  TrainShape shape;
  shape.rows = 4;
  shape.seq = 64;
  shape.dtype = DType::kBF16;
  shape.fp8 = fp8;
  shape.rates = {6e14, 4e14, 4e12};
  return shape;
}

Program micro_program(const Model& model, const TrainShape& shape) {
  return make_programs(model, shape, NoWorkspace()).micro;
}

// Instructions of one operation, in a phase or in any.
template <typename O>
std::vector<const Instruction*> all_of(const Program& program, std::optional<Phase> phase = std::nullopt) {
  std::vector<const Instruction*> found;
  for (const Instruction& instruction : program.instructions) {
    if (dynamic_cast<const O*>(instruction.op.get()) != nullptr && (!phase || instruction.phase == *phase))
      found.push_back(&instruction);
  }
  return found;
}

std::int64_t count_products(const Program& program, Kind kind) {
  const auto all = all_of<Fp8Product>(program);
  return std::count_if(all.begin(), all.end(),
                       [&](const Instruction* each) { return static_cast<const Fp8Product&>(*each->op).kind == kind; });
}

TEST(Fp8, TakesTheProductsOfBlocksForwardAndBackward) {
  const auto model = make_model(qwen2(3), "test");
  const Program program = micro_program(*model, shape_of(true));
  for (const Kind kind : {Kind::kForward, Kind::kInputGrad, Kind::kWeightGrad})
    EXPECT_EQ(count_products(program, kind), 3 * 4);
  EXPECT_TRUE(all_of<Linear>(program).empty());
  EXPECT_TRUE(all_of<LinearInputGrad>(program).empty());
  EXPECT_TRUE(all_of<LinearWeightGrad>(program).empty());
  for (const Instruction* product : all_of<Fp8Product>(program)) {
    const Kind kind = static_cast<const Fp8Product&>(*product->op).kind;
    EXPECT_EQ(product->inputs[0].spec.dtype, kind == Kind::kForward ? DType::kF8E4M3 : DType::kF8E5M2);
    EXPECT_EQ(product->inputs[1].spec.dtype, DType::kF8E4M3);
    EXPECT_EQ(product->outputs[0].arena == Role::kGradient, kind == Kind::kWeightGrad);
  }
  EXPECT_TRUE(products_left_by_fp8(*model, shape_of(true)).empty());
  // The arithmetic is the same.
  EXPECT_EQ(program.cost().flops, micro_program(*model, shape_of(false)).cost().flops);
}

TEST(Fp8, EveryTensorHasOneScaleAndItsCodesAreMadeTogether) {
  const auto model = make_model(qwen2(3), "test");
  const Program program = micro_program(*model, shape_of(true));
  // Four weights, four inputs, four gradients of results.
  EXPECT_EQ(all_of<Fp8Scale>(program).size(), 3U * 12);
  EXPECT_EQ(all_of<Fp8Scale>(program, Phase::kForward).size(), 3U * 8);
  const auto count = [&](Phase phase, Fp8Quantize::Keep keep) {
    const auto all = all_of<Fp8Quantize>(program, phase);
    return std::count_if(all.begin(), all.end(), [&](const Instruction* each) {
      return static_cast<const Fp8Quantize&>(*each->op).keep == keep;
    });
  };
  using Keep = Fp8Quantize::Keep;
  // Attention's backward pass keeps its result in bf16: the codes for its product's gradient are made there again.
  EXPECT_EQ(count(Phase::kForward, Keep::kBoth), 3 * 3);
  EXPECT_EQ(count(Phase::kForward, Keep::kRows), 3 * 5);
  EXPECT_EQ(count(Phase::kForward, Keep::kTransposed), 0);
  EXPECT_EQ(count(Phase::kBackward, Keep::kBoth), 3 * 4);
  EXPECT_EQ(count(Phase::kBackward, Keep::kTransposed), 3 * 5);
  EXPECT_EQ(count(Phase::kBackward, Keep::kRows), 0);
}

TEST(Fp8, ABiasAndAnActivationJoinTheProduct) {
  const Json config = {{"model_type", "gpt2"}, {"vocab_size", 96}, {"n_embd", 64},
                       {"n_layer", 2},         {"n_head", 4},      {"n_positions", 64}};
  const auto model = make_model(config, "test");
  const Program program = micro_program(*model, shape_of(true));
  std::int64_t activated = 0;
  for (const Instruction* product : all_of<Fp8Product>(program)) {
    const auto& op = static_cast<const Fp8Product&>(*product->op);
    activated += op.activation != Activation::kNone;
    if (op.kind == Kind::kForward) {
      EXPECT_TRUE(product->inputs[Fp8Product::kBias].present);
    }
  }
  EXPECT_EQ(activated, 2);
  EXPECT_EQ(count_products(program, Kind::kWeightGrad), 2 * 4);
}

TEST(Fp8, TakesLessMemoryThanBf16) {
  const auto model = make_model(qwen2(12), "test");
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
    TrainShape eight = shape_of(true), half = shape_of(false);
    eight.recompute = half.recompute = mode;
    const std::size_t with = micro_program(*model, eight).activation_bytes;
    const std::size_t without = micro_program(*model, half).activation_bytes;
    if (mode == RecomputeMode::kNone) {
      EXPECT_LT(with, without);
      // Of each block the inputs of three products are kept in one byte instead of two: two rows of the hidden width
      // and one of the intermediate width. What the last block holds beside them while it computes is not counted.
      const std::size_t saved = 11U * 256 * (2 * 64 + 160);
      EXPECT_GE(without - with, saved * 9 / 10);
    } else {
      // What is kept is the same, but for one scale a product; codes exist while their block computes.
      EXPECT_LE(with, without + without / 10);
    }
  }
}

TEST(Fp8, RecomputationStepsStillSaveMemoryInOrder) {
  const auto model = make_model(qwen2(6), "test");
  TrainShape shape = shape_of(true);
  shape.recompute = RecomputeMode::kFit;
  const auto bytes = [&](std::size_t steps) {
    shape.recompute_steps = static_cast<std::int64_t>(steps);
    return micro_program(*model, shape).activation_bytes;
  };
  const std::size_t all = recompute_steps(*model, shape).size();
  ASSERT_GT(all, 6U * 2);
  EXPECT_LT(bytes(all / 2), bytes(0));
  EXPECT_LT(bytes(all), bytes(all / 2));
}

TEST(Fp8, LeavesWhatDoesNotFitAndSaysSo) {
  // 16 · 9 columns fit, a head width of 36 makes queries, keys and values 16 · 18 rows; 168 is no multiple of 16.
  Json config = qwen2(2, 144);
  config["intermediate_size"] = 168;
  const auto model = make_model(config, "test");
  const std::vector<LeftProduct> left = products_left_by_fp8(*model, shape_of(true));
  ASSERT_EQ(left.size(), 2U);  // of each block down's, which is [144, 168]; gate and up together have 336 rows
  for (const LeftProduct& product : left) {
    EXPECT_NE(product.weight.find("down"), std::string::npos) << product.weight;
    EXPECT_EQ(product.why, "[144, 168] are not both multiples of 16");
  }
  const Program program = micro_program(*model, shape_of(true));
  EXPECT_EQ(count_products(program, Kind::kForward), 2 * 3);
  EXPECT_EQ(all_of<Linear>(program).size(), 2U);
  EXPECT_EQ(all_of<LinearWeightGrad>(program).size(), 2U);
}

TEST(Fp8, RefusesMicroBatchesThatLeaveNothing) {
  const auto model = make_model(qwen2(2), "test");
  TrainShape shape = shape_of(true);
  shape.rows = 1;
  shape.seq = 100;
  try {
    products_left_by_fp8(*model, shape);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kUsage);
    EXPECT_NE(std::string(error.what()).find("its 100 rows are no multiple of 16"), std::string::npos) << error.what();
    EXPECT_NE(error.remedy().find("multiple of 16"), std::string::npos);
  }
  EXPECT_TRUE(all_of<Fp8Product>(micro_program(*model, shape)).empty());
}

TEST(Fp8, AdaptersStayInBf16AndFrozenWeightsNeedNoTransposedInputs) {
  LoraConfig lora;
  lora.rank = 16;  // would fit
  const auto model = add_lora(make_model(qwen2(2), "test"), lora, "test");
  const Program program = micro_program(*model, shape_of(true));
  EXPECT_EQ(count_products(program, Kind::kForward), 2 * 4);
  EXPECT_EQ(count_products(program, Kind::kWeightGrad), 0);
  for (const Instruction* product : all_of<Linear>(program)) {
    const Shape& weight = product->inputs[1].spec.shape;
    EXPECT_EQ(std::min(weight[0], weight[1]), 16) << weight.str();
  }
  for (const Instruction* codes : all_of<Fp8Quantize>(program, Phase::kForward))
    EXPECT_FALSE(static_cast<const Fp8Quantize&>(*codes->op).keeps_transposed());
}

}  // namespace
}  // namespace convoy
