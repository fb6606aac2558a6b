// Weights in host memory change memory alone: models, dtypes, layouts, and what else is offloaded or recomputed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/parallel.h"
#include "base/random.h"
#include "models/freeze.h"
#include "models/lora.h"
#include "passes/lifetimes.h"
#include "plan/memory_report.h"
#include "support/late_device.h"
#include "support/ranks.h"
#include "train/rank_sums.h"
#include "train/tiny_model.h"

namespace convoy {
namespace {

using testing::random_batch;
using testing::run_healthy_ranks;
using testing::tiny_config;
using testing::tiny_families;

constexpr std::int64_t kVocab = 97;

std::size_t at(Role role) {
  return static_cast<std::size_t>(role);
}

// Of four blocks: enough that weights come and go.
Json deeper(Json config) {
  for (const char* key : {"num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers",
                          "text_config", "audio_config"}) {
    if (!config.contains(key)) continue;
    config[key] = config[key].is_object() ? deeper(config[key]) : Json(4);
  }
  return config;
}

struct Case {
  std::string family = "qwen2";
  int steps = 2;
  std::int64_t micro_batches = 4;  // of the global batch
  TrainShape shape;
  std::optional<LoraConfig> lora;
  std::vector<std::string> frozen;  // patterns
  bool late = false;                // copies are done when they are waited for, else when they are started
};

Case small_case() {
  Case what;
  what.shape.rows = 1;
  what.shape.seq = 32;
  what.shape.eval_rows = 1;
  what.shape.weight_decay = 0.1;
  what.shape.max_grad_norm = 0.5;
  what.shape.loss.chunk_rows = 16;
  what.shape.seed = 9;
  what.shape.has_own_memory = true;
  what.shape.offload_least_bytes = 0;
  return what;
}

std::unique_ptr<Model> model_of(const Case& what) {
  auto model = make_model(deeper(tiny_config(what.family)), "test");
  if (what.lora) model = add_lora(std::move(model), *what.lora, "test");
  if (!what.frozen.empty()) model = freeze(std::move(model), what.frozen, "test");
  return model;
}

// Losses, norms and a hash of weights and what the optimizer keeps, as text: equal texts are equal bits.
std::string train(Case what, Communicator* communicator = nullptr) {
  CpuDevice early;
  testing::LateDevice late;
  Device& device = what.late ? static_cast<Device&>(late) : early;
  const auto model = model_of(what);
  TrainShape& shape = what.shape;
  testing::set_audio(what.family, shape);
  shape.zero.world = communicator != nullptr ? communicator->size() : 1;
  shape.zero.rank = communicator != nullptr ? communicator->rank() : 0;
  shape.accumulation = what.micro_batches / shape.zero.world;
  Engine engine(device, *model, shape, communicator);
  engine.store().initialize(5);
  std::string text;
  for (int step = 0; step < what.steps; ++step) {
    std::vector<testing::RandomBatch> batches;
    std::int64_t targets = 0;
    for (std::int64_t m = 0; m < what.micro_batches; ++m) {
      batches.push_back(random_batch(shape.rows, shape.seq, kVocab, (step * what.micro_batches + m) * shape.rows));
      targets += batches.back().target_count;
    }
    for (std::int64_t i = 0; i < shape.accumulation; ++i) {
      const auto& batch = batches[static_cast<std::size_t>(shape.global_micro_batch(i))];
      engine.start_micro_step(batch.view(), 1.0 / static_cast<double>(targets));
    }
    const UpdateResult update = engine.update(1e-2, step + 1);
    const StepSums sums = sum_over_ranks(communicator, engine.take_losses(), shape.reduce_period());
    // All ranks evaluate the same batch: the first one's answer counts.
    const double evaluated = engine.evaluate(random_batch(1, shape.seq, kVocab, 1000).view()).mean();
    text += fmt::format("{:a} {:a} {} {:a}\n", sums.totals.mean(), update.gradient_norm, update.skipped, evaluated);
  }
  Hasher hasher;
  const std::unique_ptr<Communicator> single = make_single_communicator();
  Communicator& group = communicator != nullptr ? *communicator : *single;
  for (std::size_t p = 0; p < model->parameters().size(); ++p) {
    hasher.add(engine.store().gather(p, shape.dtype, group));
    if (shape.has_master() && model->parameters()[p].trainable)
      hasher.add(engine.store().gather(p, DType::kF32, group));
  }
  if (communicator == nullptr) {
    for (const Slot& slot : engine.programs().layout.slots(Role::kMoment))
      hasher.add(engine.store().read(Role::kMoment, slot.name));
  }
  EXPECT_EQ(late.late_copies() > 0, what.late && (shape.zero.offload_param || shape.offload_activations));
  EXPECT_EQ(device.memory().peak, engine.programs().sizes.total());
  return text + hex64(hasher.value());
}

// Both extremes of when copies happen.
void expect_same(const std::string& kept, Case away, const std::string& about) {
  away.shape.zero.offload_param = true;
  for (const bool late : {false, true}) {
    away.late = late;
    EXPECT_EQ(train(away), kept) << away.family << " " << name_of(away.shape.dtype) << " " << about
                                 << (late ? ", late copies" : "");
  }
}

class OffloadParam : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, OffloadParam, ::testing::ValuesIn(tiny_families()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');  // as GoogleTest wants
  return name;
});

TEST_P(OffloadParam, ChangesNothingHoweverElseMemoryIsSaved) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool deterministic : {true, false}) {
      Case what = small_case();
      what.family = GetParam();
      what.shape.dtype = dtype;
      what.shape.deterministic = deterministic;
      const std::string kept = train(what);
      for (const RecomputeMode mode :
           {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull, RecomputeMode::kFit}) {
        what.shape.recompute = mode;
        what.shape.rates = {2e11, 1e11, 2e10};
        what.shape.recompute_steps = 3;
        what.shape.offload_activations =
            mode == RecomputeMode::kFull || (deterministic && mode == RecomputeMode::kNone);
        what.shape.offload_optimizer = mode != RecomputeMode::kNone;
        expect_same(kept, what, fmt::format("recompute {}, deterministic {}", name_of(mode), deterministic));
      }
    }
  }
}

TEST_P(OffloadParam, ChangesNothingWhereWeightsAreFrozen) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kFull}) {
      Case what = small_case();
      what.family = GetParam();
      what.shape.dtype = dtype;
      what.shape.recompute = mode;
      what.lora = LoraConfig{};
      what.lora->rank = 4;
      what.lora->dropout = 0.1;
      expect_same(train(what), what, "LoRA");
      what.lora.reset();
      what.frozen = {model_of(what)->file_tensors()[0].name};
      expect_same(train(what), what, "a frozen weight");
    }
  }
}

TEST_P(OffloadParam, PlannedBytesEqualTheHighWaterMark) {
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
    for (const bool lora : {false, true}) {
      Case what = small_case();
      what.family = GetParam();
      what.shape.accumulation = 2;
      what.shape.recompute = mode;
      if (lora) what.lora = LoraConfig{};
      testing::set_audio(what.family, what.shape);
      const auto model = model_of(what);
      CpuDevice device;
      const ProgramSet kept = make_programs(*model, what.shape, device);
      what.shape.zero.offload_param = true;
      Engine engine(device, *model, what.shape);
      engine.store().initialize(5);
      const auto batch = random_batch(what.shape.rows, what.shape.seq, kVocab);
      engine.micro_step(batch.view(), 0.01);
      engine.micro_step(batch.view(), 0.01);
      engine.update(1e-3, 1);
      engine.evaluate(batch.view());
      const ArenaSizes& sizes = engine.programs().sizes;
      const MemoryReport report = memory_report(sizes, engine.programs().activation_lower_bound);
      EXPECT_EQ(device.memory().peak, report.total);
      EXPECT_EQ(report.host_total, sizes.bytes[at(Role::kWeight)]);
      EXPECT_EQ(sizes.bytes[at(Role::kWeight)], kept.sizes.bytes[at(Role::kWeight)]);
      const std::size_t touched =
          std::max(engine.micro_executor().high_water(Role::kActivation), engine.eval_high_water());
      EXPECT_EQ(aligned(touched), sizes.bytes[at(Role::kActivation)]);
      EXPECT_LT(sizes.total(), kept.sizes.total()) << name_of(mode);
    }
  }
}

TEST_P(OffloadParam, EvaluationAloneGivesTheSameLossInLessMemory) {
  Case what = small_case();
  what.family = GetParam();
  what.shape.training = false;
  testing::set_audio(what.family, what.shape);
  const auto model = model_of(what);
  const auto batch = random_batch(1, what.shape.seq, kVocab);
  CpuDevice device;
  testing::LateDevice late;
  Engine kept(device, *model, what.shape);
  what.shape.zero.offload_param = true;
  Engine away(late, *model, what.shape);
  kept.store().initialize(5);
  away.store().initialize(5);
  EXPECT_EQ(kept.evaluate(batch.view()).loss_sum, away.evaluate(batch.view()).loss_sum);
  EXPECT_EQ(late.memory().peak, away.programs().sizes.total());
  EXPECT_LT(late.memory().peak, device.memory().peak);
}

// Products in 8 bits make their codes from the fetched weights, once for each pass.
TEST(OffloadParamMore, ChangesNothingBesideEightBitProductsAndNarrowState) {
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kFull}) {
    Case what = small_case();
    what.shape.dtype = DType::kBF16;
    what.shape.recompute = mode;
    const std::string in_bf16 = train(what);
    what.shape.fp8 = true;
    const std::string kept = train(what);
    EXPECT_NE(kept, in_bf16);
    expect_same(kept, what, "fp8");
    what.shape.fp8 = false;
    what.shape.narrow_gradients = true;
    expect_same(train(what), what, "16-bit gradients");
    what.shape.narrow_gradients = false;
    what.shape.master_weights = false;
    what.shape.optimizer.moment_dtype = DType::kBF16;
    expect_same(train(what), what, "bf16 state");
  }
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kLion, OptimizerKind::kAdagrad}) {
    Case what = small_case();
    what.shape.optimizer.kind = kind;
    what.shape.sparse_embeddings = true;
    expect_same(train(what), what, "other optimizers");
  }
}

TEST(OffloadParamMore, EveryWorldGivesTheBitsOfOneRank) {
  RandomStream random(2026, 31);
  const auto pick = [&](std::uint64_t count) { return static_cast<std::int64_t>(random.below(count)); };
  const std::vector<std::string> families = tiny_families();
  for (std::size_t round = 0; round < families.size(); ++round) {
    Case what = small_case();
    what.family = families[round];
    what.shape.dtype = std::array{DType::kBF16, DType::kF32, DType::kF16}[round % 3];
    what.micro_batches = 4 * (1 + pick(2));
    if (round % 3 == 2) {
      what.lora = LoraConfig{};
      what.lora->rank = 4;
    }
    const auto on = [&](int ranks) {
      return run_healthy_ranks(ranks, [&](Communicator& c) { return train(what, &c); })[0];
    };
    what.shape.narrow_gradients = what.shape.dtype != DType::kF32 && pick(2) == 0;
    const std::string alone = on(1);
    what.shape.zero.offload_param = true;
    for (const int ranks : {1, 2, 4}) {
      what.shape.zero.stage = ranks == 1 ? static_cast<int>(pick(4)) : 3;
      what.shape.zero.overlap = pick(2) == 0;
      what.shape.zero.reduce_bucket = 1 + pick(20000);
      what.shape.zero.gather_bucket = 1 + pick(20000);
      what.shape.zero.prefetch_bucket = pick(30000);
      what.shape.zero.max_live = pick(60000);
      what.shape.zero.max_reuse_distance = pick(60000);
      what.shape.recompute = static_cast<RecomputeMode>(pick(3));
      what.shape.offload_activations = pick(2) == 0;
      what.shape.offload_optimizer = pick(2) == 0;
      for (const bool late : {false, true}) {
        what.late = late;
        EXPECT_EQ(on(ranks), alone) << what.family << " ranks " << ranks << (late ? ", late copies" : "")
                                    << " recompute " << name_of(what.shape.recompute);
      }
    }
  }
}

TEST(OffloadParamMore, EveryRankTakesExactlyWhatIsPlanned) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto results = run_healthy_ranks(3, [&](Communicator& c) {
      Case what = small_case();
      what.shape.dtype = dtype;
      what.shape.zero.stage = 3;
      what.shape.zero.world = c.size();
      what.shape.zero.rank = c.rank();
      what.shape.zero.max_reuse_distance = 0;
      const auto model = model_of(what);
      CpuDevice planner;
      const ProgramSet kept = make_programs(*model, what.shape, planner);
      what.shape.zero.offload_param = true;
      const ProgramSet set = make_programs(*model, what.shape, planner);
      const MemoryReport report = memory_report(set.sizes, set.activation_lower_bound);
      CpuDevice device;
      Engine engine(device, *model, what.shape, &c);
      engine.store().initialize(5);
      const auto batch = random_batch(what.shape.rows, what.shape.seq, kVocab, c.rank());
      engine.micro_step(batch.view(), 0.01);
      engine.update(1e-3, 1);
      engine.evaluate(batch.view());
      if (set.sizes.bytes[at(Role::kWeight)] == 0 || kept.sizes.total() <= set.sizes.total())
        return fmt::format("nothing saved: {} and {}", kept.sizes.total(), set.sizes.total());
      return device.memory().peak == report.total && report.host_total == set.sizes.bytes[at(Role::kWeight)]
                 ? std::string("exact")
                 : fmt::format("planned {}, taken {}", report.total, device.memory().peak);
    });
    for (const std::string& result : results) EXPECT_EQ(result, "exact") << name_of(dtype);
  }
}

}  // namespace
}  // namespace convoy
