#include "train/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/parallel.h"
#include "passes/lifetimes.h"
#include "plan/memory_report.h"
#include "support/graph_runner.h"
#include "support/test_device.h"
#include "train/tiny_model.h"

namespace convoy {
namespace {

using testing::random_batch;
using testing::tiny_config;
using testing::tiny_families;

constexpr std::int64_t kVocab = 97;

// Everything that a run leaves: losses, norms, and a hash of all weights and moments.
struct Outcome {
  std::vector<double> losses, norms;
  std::uint64_t state = 0;
};

Outcome train(const std::string& family, TrainShape shape, int steps, std::int64_t total_rows) {
  testing::set_audio(family, shape);
  const std::unique_ptr<Device> owned_device = testing::test_device();
  Device& device = *owned_device;
  const auto model = make_model(tiny_config(family), "test");
  Engine engine(device, *model, shape);
  engine.store().initialize(5);
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    std::vector<testing::RandomBatch> batches;
    std::int64_t targets = 0;
    for (std::int64_t row = 0; row < total_rows; row += shape.rows) {
      batches.push_back(random_batch(shape.rows, shape.seq, kVocab, step * total_rows + row));
      targets += batches.back().target_count;
    }
    LossTotals totals;
    for (const auto& batch : batches) totals += engine.micro_step(batch.view(), 1.0 / static_cast<double>(targets));
    outcome.losses.push_back(totals.mean());
    outcome.norms.push_back(engine.update(1e-3, step + 1).gradient_norm);
  }
  Hasher hasher;
  for (Role role : {Role::kWeight, Role::kMaster, Role::kMoment}) {
    for (const Slot& slot : engine.programs().layout.slots(role)) hasher.add(engine.store().read(role, slot.name));
  }
  outcome.state = hasher.value();
  return outcome;
}

TrainShape small_shape() {
  TrainShape shape;
  shape.rows = 2;
  shape.seq = 32;
  shape.accumulation = 2;
  shape.weight_decay = 0.1;
  shape.max_grad_norm = 1.0;
  shape.loss.chunk_rows = 16;
  shape.seed = 9;
  return shape;
}

class Families : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::ValuesIn(tiny_families()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');  // as GoogleTest wants
  return name;
});

TEST_P(Families, SameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TrainShape shape = small_shape();
    shape.dtype = dtype;
    set_threads(1);
    const Outcome one = train(GetParam(), shape, 2, 4);
    for (const int count : {2, 3, 8}) {
      set_threads(count);
      const Outcome more = train(GetParam(), shape, 2, 4);
      EXPECT_EQ(one.losses, more.losses) << count;
      EXPECT_EQ(one.state, more.state) << count << " threads, " << name_of(dtype);
    }
    set_threads(0);
  }
}

TEST_P(Families, RecomputationChangesNothing) {
  TrainShape shape = small_shape();
  const Outcome kept = train(GetParam(), shape, 2, 4);
  for (const RecomputeMode mode : {RecomputeMode::kSelective, RecomputeMode::kFull}) {
    shape.recompute = mode;
    const Outcome again = train(GetParam(), shape, 2, 4);
    EXPECT_EQ(kept.losses, again.losses) << name_of(mode);
    EXPECT_EQ(kept.state, again.state) << name_of(mode);
  }
  shape.recompute = RecomputeMode::kFit;
  shape.rates = {2e11, 1e11, 2e10};
  for (const std::int64_t steps : {1, 4, 100}) {
    shape.recompute_steps = steps;
    const Outcome again = train(GetParam(), shape, 2, 4);
    EXPECT_EQ(kept.losses, again.losses) << steps << " steps";
    EXPECT_EQ(kept.state, again.state) << steps << " steps";
  }
}

TEST_P(Families, OffloadedActivationsChangeNothing) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TrainShape shape = small_shape();
    shape.dtype = dtype;
    shape.offload_least_bytes = 0;
    for (const bool deterministic : {true, false}) {
      shape.deterministic = deterministic;
      shape.recompute = RecomputeMode::kNone;
      shape.offload_activations = false;
      const Outcome kept = train(GetParam(), shape, 3, 4);
      shape.offload_activations = true;
      for (const RecomputeMode mode :
           {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull, RecomputeMode::kFit}) {
        shape.recompute = mode;
        shape.rates = {2e11, 1e11, 2e10};
        shape.recompute_steps = 3;
        const Outcome away = train(GetParam(), shape, 3, 4);
        EXPECT_EQ(kept.losses, away.losses) << name_of(mode);
        EXPECT_EQ(kept.state, away.state) << name_of(mode) << " " << name_of(dtype);
      }
    }
  }
}

TEST_P(Families, HowTheBatchIsCutChangesOnlyRounding) {
  TrainShape whole = small_shape();
  whole.rows = 8;
  whole.accumulation = 1;
  const Outcome reference = train(GetParam(), whole, 2, 8);
  for (const std::int64_t rows : {1, 2, 4}) {
    for (const bool deterministic : {true, false}) {
      TrainShape cut = small_shape();
      cut.rows = rows;
      cut.accumulation = 8 / rows;
      cut.deterministic = deterministic;
      const Outcome outcome = train(GetParam(), cut, 2, 8);
      for (std::size_t step = 0; step < 2; ++step) {
        EXPECT_NEAR(outcome.losses[step], reference.losses[step], 2e-5 * reference.losses[step]) << rows;
        EXPECT_NEAR(outcome.norms[step], reference.norms[step], 1e-4 * reference.norms[step]) << rows;
      }
    }
  }
}

// The sum over micro-batches is the fixed binary tree: ((0+1)+(2+3))+4 for five of them.
TEST(Engine, SumsMicroBatchesByAFixedTree) {
  const std::unique_ptr<Device> owned_device = testing::test_device();
  Device& device = *owned_device;
  const auto model = make_model(tiny_config("qwen2"), "test");
  TrainShape one = small_shape();
  one.accumulation = 1;
  std::vector<std::vector<double>> alone;
  for (int m = 0; m < 5; ++m) {
    Engine engine(device, *model, one);
    engine.store().initialize(5);
    engine.micro_step(random_batch(2, 32, kVocab, 2 * m).view(), 0.01);
    alone.push_back(testing::from_bytes(DType::kF32, engine.gradient(1)));
  }
  TrainShape five = small_shape();
  five.accumulation = 5;
  Engine engine(device, *model, five);
  engine.store().initialize(5);
  for (int m = 0; m < 5; ++m) engine.micro_step(random_batch(2, 32, kVocab, 2 * m).view(), 0.01);
  engine.update(0, 1);
  const auto sum = testing::from_bytes(DType::kF32, engine.gradient(1));
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const auto at = [&](std::size_t m) { return static_cast<float>(alone[m][i]); };
    const float expected = ((at(0) + at(1)) + (at(2) + at(3))) + at(4);
    ASSERT_EQ(static_cast<float>(sum[i]), expected) << i;
  }
}

// finetune-transformer-lm's rule from its formula: eps beside the uncorrected root, and a decay that the corrections
// scale.
TEST(Engine, OpenAiAdamFollowsItsFormula) {
  const std::unique_ptr<Device> owned = testing::test_device();
  const auto model = make_model(tiny_config("openai-gpt"), "test");
  TrainShape shape = small_shape();
  shape.accumulation = 1;
  shape.dtype = DType::kF32;
  shape.optimizer.kind = OptimizerKind::kOpenAiAdam;
  shape.optimizer.eps = 1e-3;  // large enough to matter
  shape.max_grad_norm = 0.01;  // clips
  Engine engine(*owned, *model, shape);
  engine.store().initialize(5);
  const auto batch = random_batch(shape.rows, shape.seq, kVocab);
  const auto weight = [&](std::size_t p) {
    return testing::from_bytes(DType::kF32, engine.store().rows(p, 0, model->parameters()[p].shape[0], DType::kF32));
  };
  const std::size_t count = model->parameters().size();
  std::vector<std::vector<double>> w(count), m(count), v(count);
  for (std::size_t p = 0; p < count; ++p) {
    w[p] = weight(p);
    m[p].assign(w[p].size(), 0);
    v[p].assign(w[p].size(), 0);
  }
  const double lr = 1e-2, b1 = shape.optimizer.beta1, b2 = shape.optimizer.beta2;
  for (int step = 1; step <= 3; ++step) {
    engine.micro_step(batch.view(), 0.01);
    std::vector<std::vector<double>> g;
    double squares = 0;
    for (std::size_t p = 0; p < count; ++p) {
      g.push_back(testing::from_bytes(DType::kF32, engine.gradient(p)));
      for (const double each : g.back()) squares += each * each;
    }
    ASSERT_GT(std::sqrt(squares), shape.max_grad_norm);
    engine.update(lr, step);
    const double rate = lr * std::sqrt(1 - std::pow(b2, step)) / (1 - std::pow(b1, step));
    for (std::size_t p = 0; p < count; ++p) {
      const bool decays = model->parameters()[p].shape.rank() > 1;
      double worst = 0;
      const std::vector<double> now = weight(p);
      for (std::size_t i = 0; i < now.size(); ++i) {
        const double clipped = g[p][i] * shape.max_grad_norm / std::sqrt(squares);
        m[p][i] = b1 * m[p][i] + (1 - b1) * clipped;
        v[p][i] = b2 * v[p][i] + (1 - b2) * clipped * clipped;
        w[p][i] -= rate * (m[p][i] / (std::sqrt(v[p][i]) + shape.optimizer.eps) +
                           (decays ? shape.weight_decay * w[p][i] : 0.0));
        worst = std::max(worst, std::abs(w[p][i] - now[i]));
      }
      EXPECT_LT(worst, 1e-6) << model->parameters()[p].name << " step " << step;
    }
  }
}

// Statistics are read when somebody asks for them: in the order of starting, once each, and as many as there are.
TEST(Engine, StartedStepsGiveTheNumbersOfOnesThatAreWaitedFor) {
  const std::unique_ptr<Device> owned_device = testing::test_device();
  Device& device = *owned_device;
  const auto model = make_model(tiny_config("qwen2"), "test");
  TrainShape shape = small_shape();
  shape.accumulation = 5;
  shape.eval_rows = 2;
  Engine waiting(device, *model, shape), started(device, *model, shape);
  waiting.store().initialize(5);
  started.store().initialize(5);
  const auto batch = [](int m) { return random_batch(2, 32, kVocab, 2 * m); };
  for (int step = 0; step < 2; ++step) {
    std::vector<LossTotals> expected;
    for (int m = 0; m < 5; ++m) {
      expected.push_back(waiting.micro_step(batch(5 * step + m).view(), 0.01));
      started.start_micro_step(batch(5 * step + m).view(), 0.01);  // the batch is gone before its numbers are read
    }
    EXPECT_EQ(waiting.update(1e-2, step + 1).gradient_norm, started.update(1e-2, step + 1).gradient_norm);
    const std::vector<LossTotals> got = started.take_losses();
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t m = 0; m < got.size(); ++m) {
      EXPECT_EQ(got[m].loss_sum, expected[m].loss_sum);
      EXPECT_EQ(got[m].targets, expected[m].targets);
      EXPECT_EQ(got[m].correct, expected[m].correct);
    }
    EXPECT_TRUE(started.take_losses().empty());
    EXPECT_TRUE(waiting.take_losses().empty());
  }
  constexpr int kMany = 600;  // more than the engine keeps unread
  for (int m = 0; m < kMany; ++m) started.start_evaluate(batch(m % 3).view());
  const std::vector<LossTotals> many = started.take_losses();
  ASSERT_EQ(many.size(), std::size_t{kMany});
  for (std::size_t m = 0; m < many.size(); ++m) EXPECT_EQ(many[m].loss_sum, many[m % 3].loss_sum);
  EXPECT_EQ(many[1].loss_sum, waiting.evaluate(batch(1).view()).loss_sum);
  EXPECT_NE(many[0].loss_sum, many[1].loss_sum);
}

TEST(Engine, AStepWithAGradientThatIsNotFiniteIsSkipped) {
  const std::unique_ptr<Device> owned_device = testing::test_device();
  Device& device = *owned_device;
  const auto model = make_model(tiny_config("llama"), "test");
  TrainShape shape = small_shape();
  shape.accumulation = 1;
  Engine engine(device, *model, shape);
  engine.store().initialize(5);
  const auto before = engine.store().read(Role::kWeight, model->parameters()[1].name);
  engine.micro_step(random_batch(2, 32, kVocab).view(), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(engine.update(1e-3, 1).skipped);
  EXPECT_TRUE(engine.store().read(Role::kWeight, model->parameters()[1].name) == before);
  engine.micro_step(random_batch(2, 32, kVocab).view(), 0.01);
  EXPECT_FALSE(engine.update(1e-3, 1).skipped);
  EXPECT_FALSE(engine.store().read(Role::kWeight, model->parameters()[1].name) == before);
}

TEST(Engine, EveryOptimizerAndDTypeLowersTheLoss) {
  const std::unique_ptr<Device> owned_device = testing::test_device();
  Device& device = *owned_device;
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kAdam, OptimizerKind::kSgd,
                                   OptimizerKind::kLion, OptimizerKind::kAdagrad, OptimizerKind::kOpenAiAdam}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const auto model = make_model(tiny_config("qwen3"), "test");
      TrainShape shape = small_shape();
      shape.accumulation = 1;
      shape.dtype = dtype;
      shape.optimizer.kind = kind;
      shape.optimizer.momentum = 0.9;
      shape.weight_decay = 0;
      Engine engine(device, *model, shape);
      engine.store().initialize(5);
      const auto batch = random_batch(2, 32, kVocab);
      const double lr = kind == OptimizerKind::kSgd ? 0.3 : (kind == OptimizerKind::kAdagrad ? 0.03 : 3e-3);
      double first = 0, last = 0;
      for (int step = 0; step < 25; ++step) {
        last = engine.micro_step(batch.view(), 1.0 / static_cast<double>(batch.target_count)).mean();
        if (step == 0) first = last;
        engine.update(lr, step + 1);
      }
      EXPECT_LT(last, 0.8 * first) << name_of(kind) << " " << name_of(dtype);
    }
  }
}

TEST_P(Families, PlannedBytesEqualTheHighWaterMark) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
      for (const std::int64_t rows : {1, 3}) {
        for (const std::int64_t seq : {16, 40}) {
          TrainShape shape = small_shape();
          shape.dtype = dtype;
          shape.recompute = mode;
          shape.rows = rows;
          shape.seq = seq;
          shape.eval_rows = 2;
          testing::set_audio(GetParam(), shape);
          ModelOptions options;  // one of the shapes with another head, where there is one
          if (GetParam() == "openai-gpt" && rows == 3) {
            options.head = ModelOptions::Head::kChoice;
            shape.auxiliary_weight = 0.5;
          }
          const auto model = make_model(tiny_config(GetParam()), "test", options);
          const std::unique_ptr<Device> owned_planner = testing::test_device();
          Device& planner = *owned_planner;
          const ProgramSet set = make_programs(*model, shape, planner);
          const MemoryReport report = memory_report(set.sizes, set.activation_lower_bound);
          EXPECT_EQ(planner.memory().peak, 0u) << "planning takes no memory of the device";
          const std::unique_ptr<Device> owned_device = testing::test_device();
          Device& device = *owned_device;
          Engine engine(device, *model, shape);
          engine.store().initialize(5);
          const auto batch = random_batch(rows, seq, kVocab);
          engine.micro_step(batch.view(), 0.01);
          engine.micro_step(batch.view(), 0.01);
          engine.update(1e-3, 1);
          engine.evaluate(random_batch(2, seq, kVocab).view());
          EXPECT_EQ(device.memory().peak, report.total);
          // And the arena is as large as what the instructions touch, not larger (up to the alignment of its end).
          const std::size_t touched =
              std::max(engine.micro_executor().high_water(Role::kActivation), engine.eval_high_water());
          EXPECT_EQ(aligned(touched), set.sizes.bytes[static_cast<std::size_t>(Role::kActivation)]);
        }
      }
    }
  }
}

TEST_P(Families, PlannedBytesEqualTheHighWaterMarkWithOffload) {
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
    TrainShape shape = small_shape();
    shape.recompute = mode;
    shape.eval_rows = 2;
    testing::set_audio(GetParam(), shape);
    const auto model = make_model(tiny_config(GetParam()), "test");
    const std::unique_ptr<Device> device = testing::test_device();
    const ProgramSet kept = make_programs(*model, shape, *device);
    shape.offload_activations = true;
    shape.offload_least_bytes = 0;
    Engine engine(*device, *model, shape);
    engine.store().initialize(5);
    const auto batch = random_batch(shape.rows, shape.seq, kVocab);
    engine.micro_step(batch.view(), 0.01);
    engine.micro_step(batch.view(), 0.01);
    engine.update(1e-3, 1);
    const ProgramSet& set = engine.programs();
    const auto bytes = [](const ProgramSet& of, Role role) { return of.sizes.bytes[static_cast<std::size_t>(role)]; };
    EXPECT_EQ(device->memory().peak, memory_report(set.sizes, set.activation_lower_bound).total);
    EXPECT_EQ(set.sizes.host_total(), bytes(set, Role::kHostActivation));
    // Two blocks have little that is away for long: selective recomputation keeps none of it.
    if (mode != RecomputeMode::kSelective) {
      EXPECT_GT(bytes(set, Role::kHostActivation), 0u) << name_of(mode);
    }
    EXPECT_EQ(aligned(engine.micro_executor().high_water(Role::kHostActivation)), bytes(set, Role::kHostActivation));
    EXPECT_LE(bytes(set, Role::kActivation), bytes(kept, Role::kActivation));
  }
}

TEST_P(Families, EvaluationAloneGivesTheSameLossInLessMemory) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TrainShape shape = small_shape();
    shape.dtype = dtype;
    shape.eval_rows = 2;
    testing::set_audio(GetParam(), shape);
    TrainShape alone = shape;
    alone.training = false;
    const auto model = make_model(tiny_config(GetParam()), "test");
    const auto batch = random_batch(2, shape.seq, kVocab);
    const std::unique_ptr<Device> training_device = testing::test_device();
    Engine training(*training_device, *model, shape);
    training.store().initialize(5);
    const std::unique_ptr<Device> device = testing::test_device();
    Engine evaluating(*device, *model, alone);
    evaluating.store().initialize(5);
    const LossTotals expected = training.evaluate(batch.view());
    const LossTotals got = evaluating.evaluate(batch.view());
    EXPECT_EQ(got.loss_sum, expected.loss_sum);
    EXPECT_EQ(got.targets, expected.targets);
    EXPECT_EQ(got.correct, expected.correct);
    // What is planned is what is taken, and there is no room for gradients and moments.
    const ProgramSet& set = evaluating.programs();
    EXPECT_EQ(device->memory().peak, memory_report(set.sizes, set.activation_lower_bound).total);
    for (const Role role : {Role::kGradient, Role::kMaster, Role::kMoment})
      EXPECT_EQ(set.sizes.bytes[static_cast<std::size_t>(role)], 0u) << name_of(role);
    const std::size_t weights = set.sizes.bytes[static_cast<std::size_t>(Role::kWeight)];
    EXPECT_LT(set.sizes.total() + 3 * weights, training.programs().sizes.total());
    EXPECT_THROW(evaluating.micro_step(batch.view(), 1), Error) << "no training was planned";
  }
}

}  // namespace
}  // namespace convoy
