// Any layout of ranks gives the bits of one rank.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/hash.h"
#include "base/parallel.h"
#include "base/random.h"
#include "cpu/cpu_device.h"
#include "graph/ops/compress.h"
#include "models/lora.h"
#include "plan/memory_report.h"
#include "support/ranks.h"
#include "train/rank_sums.h"
#include "train/tiny_model.h"

namespace convoy {
namespace {

using testing::random_batch;
using testing::run_healthy_ranks;
using testing::tiny_config;

constexpr std::int64_t kVocab = 97;

struct Case {
  std::string family = "qwen2";
  ModelOptions::Head head = ModelOptions::Head::kLanguageModel;
  std::int64_t micro_batches = 4;  // of the global batch
  int steps = 3;
  TrainShape shape;
  std::optional<LoraConfig> lora;
};

TrainShape small_shape() {
  TrainShape shape;
  shape.rows = 1;
  shape.seq = 24;
  shape.weight_decay = 0.1;
  shape.max_grad_norm = 0.5;
  shape.loss.chunk_rows = 16;
  shape.seed = 9;
  shape.eval_rows = 1;
  shape.zero.persistence_threshold = 0;
  return shape;
}

// Losses, norms and a hash of all weights and moments, as text: equal texts are equal bits.
std::string train(Case what, Communicator& communicator) {
  set_threads(1);
  CpuDevice device;
  ModelOptions options;
  options.head = what.head;
  auto model = make_model(tiny_config(what.family), "test", options);
  if (what.lora) model = add_lora(std::move(model), *what.lora, "test");
  const bool choice = what.head == ModelOptions::Head::kChoice;
  TrainShape shape = what.shape;
  testing::set_audio(what.family, shape);
  shape.zero.world = communicator.size();
  shape.zero.rank = communicator.rank();
  shape.accumulation = what.micro_batches / communicator.size();
  Engine engine(device, *model, shape, &communicator);
  engine.store().initialize(5);
  std::string text;
  for (int step = 0; step < what.steps; ++step) {
    std::vector<testing::RandomBatch> batches;
    std::int64_t targets = 0;
    for (std::int64_t m = 0; m < what.micro_batches; ++m) {
      batches.push_back(random_batch(shape.rows, shape.seq, kVocab, (step * what.micro_batches + m) * shape.rows));
      targets += batches.back().target_count;
    }
    std::vector<LossTotals> totals;
    for (std::int64_t i = 0; i < shape.accumulation; ++i) {
      const auto& batch = batches[static_cast<std::size_t>(shape.global_micro_batch(i))];
      const double of_tokens = 1.0 / static_cast<double>(targets);
      const double of_items = 1.0 / static_cast<double>(what.micro_batches * shape.rows);
      totals.push_back(
          engine.micro_step(batch.view(), choice ? of_items : of_tokens, shape.auxiliary_weight * of_tokens));
    }
    const UpdateResult update = engine.update(1e-2, step + 1);
    const StepSums sums = sum_over_ranks(&communicator, totals, shape.reduce_period());
    text += fmt::format("{:a} {:a} {} {:a}\n", sums.totals.mean(), update.gradient_norm, update.skipped,
                        sums.totals.auxiliary_mean());
  }
  const auto& eval_batch = random_batch(shape.eval_rows, shape.seq, kVocab, 100 + communicator.rank());
  text += fmt::format("{:a}\n", communicator.rank() == 0 ? engine.evaluate(eval_batch.view()).mean()
                                                         : (engine.evaluate(eval_batch.view()), 0.0));
  Hasher hasher;
  for (std::size_t p = 0; p < model->parameters().size(); ++p) {
    hasher.add(engine.store().gather(p, shape.dtype, communicator));
    if (shape.has_master() && model->parameters()[p].trainable)
      hasher.add(engine.store().gather(p, DType::kF32, communicator));
  }
  return communicator.rank() == 0 ? text + hex64(hasher.value()) : "";
}

std::string train_on(const Case& what, int ranks) {
  return run_healthy_ranks(ranks, [&](Communicator& c) { return train(what, c); })[0];
}

TEST(Layouts, EveryStageAndWorldGivesTheBitsOfOneRank) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Case what;
    what.shape = small_shape();
    what.shape.dtype = dtype;
    what.micro_batches = 8;
    what.steps = 20;
    const std::string alone = train_on(what, 1);
    ASSERT_FALSE(alone.empty());
    for (const int ranks : {2, 4, 8}) {
      for (int stage = 0; stage <= 3; ++stage) {
        what.shape.zero.stage = stage;
        EXPECT_EQ(train_on(what, ranks), alone) << name_of(dtype) << " stage " << stage << " ranks " << ranks;
      }
    }
  }
}

TEST(Layouts, EightBitProductsGiveTheBitsOfOneRank) {
  RandomStream random(2026, 14);
  const auto pick = [&](std::uint64_t count) { return static_cast<std::int64_t>(random.below(count)); };
  const std::vector<std::string> families = testing::tiny_families();
  for (std::size_t round = 0; round < families.size(); ++round) {
    Case what;
    what.family = families[round];
    what.shape = small_shape();
    what.shape.seq = 32;
    what.shape.dtype = DType::kBF16;
    if (round % 3 == 2) {
      what.lora = LoraConfig{};
      what.lora->rank = 4;
    }
    what.micro_batches = 8 * (1 + pick(2));
    const std::string in_bf16 = train_on(what, 1);
    what.shape.fp8 = true;
    const std::string alone = train_on(what, 1);
    EXPECT_NE(alone, in_bf16);
    for (const int ranks : {2, 4, 8}) {
      for (int stage = 0; stage <= 3; ++stage) {
        what.shape.zero.stage = stage;
        what.shape.recompute = static_cast<RecomputeMode>(pick(3));
        what.shape.zero.reduce_bucket = 1 + pick(20000);
        what.shape.zero.gather_bucket = 1 + pick(20000);
        what.shape.zero.persistence_threshold = pick(3000);
        what.shape.zero.max_live = pick(60000);
        EXPECT_EQ(train_on(what, ranks), alone) << what.family << " stage " << stage << " ranks " << ranks
                                                << " recompute " << name_of(what.shape.recompute);
      }
    }
  }
}

TEST(Layouts, AChoiceWithItsAuxiliaryLossGivesTheBitsOfOneRank) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Case what;
    what.family = "openai-gpt";
    what.head = ModelOptions::Head::kChoice;
    what.shape = small_shape();
    what.shape.rows = 2;
    what.shape.dtype = dtype;
    what.shape.auxiliary_weight = 0.5;
    what.shape.optimizer.kind = OptimizerKind::kOpenAiAdam;
    const std::string alone = train_on(what, 1);
    ASSERT_FALSE(alone.empty());
    for (const int ranks : {2, 4}) {
      for (int stage = 0; stage <= 3; ++stage) {
        what.shape.zero.stage = stage;
        EXPECT_EQ(train_on(what, ranks), alone) << name_of(dtype) << " stage " << stage << " ranks " << ranks;
      }
    }
    what.shape.auxiliary_weight = 0;
    EXPECT_NE(train_on(what, 1), alone);
  }
}

// Their encoders' tensors differ in kind: a table that is not trained, biases of a part of a product, audio rows.
TEST(Layouts, ModelsThatHearGiveTheBitsOfOneRank) {
  for (const std::string family : {"whisper", "glmasr"}) {
    Case what;
    what.family = family;
    what.shape = small_shape();
    what.shape.dtype = DType::kF16;
    what.micro_batches = 4;
    what.steps = 3;
    const std::string alone = train_on(what, 1);
    ASSERT_FALSE(alone.empty());
    for (int stage = 0; stage <= 3; ++stage) {
      what.shape.zero.stage = stage;
      EXPECT_EQ(train_on(what, 2), alone) << family << " stage " << stage;
    }
  }
}

TEST(Layouts, RandomLayoutsGiveTheBitsOfOneRank) {
  RandomStream random(2026, 12);
  const auto pick = [&](std::uint64_t count) { return static_cast<std::int64_t>(random.below(count)); };
  const std::vector<std::string> families = testing::tiny_families();
  for (int round = 0; round < 16; ++round) {
    Case what;
    what.family = families[static_cast<std::size_t>(pick(families.size()))];
    what.shape = small_shape();
    what.shape.dtype = pick(2) == 0 ? DType::kF32 : DType::kBF16;
    what.shape.recompute = static_cast<RecomputeMode>(pick(3));
    const int ranks = 1 << (1 + pick(3));
    what.micro_batches = ranks * (1 + pick(8));
    what.steps = 2;
    const std::string alone = train_on(what, 1);
    what.shape.zero.stage = static_cast<int>(pick(4));
    what.shape.zero.overlap = pick(2) == 0;
    what.shape.zero.reduce_bucket = 1 + pick(20000);
    what.shape.zero.gather_bucket = 1 + pick(20000);
    what.shape.zero.prefetch_bucket = pick(30000);
    what.shape.zero.persistence_threshold = pick(3000);
    what.shape.zero.max_live = pick(60000);
    what.shape.zero.max_reuse_distance = pick(60000);
    EXPECT_EQ(train_on(what, ranks), alone)
        << what.family << " stage " << what.shape.zero.stage << " ranks " << ranks << " micro-batches "
        << what.micro_batches << " recompute " << static_cast<int>(what.shape.recompute);
  }
}

TEST(Layouts, NarrowGradientsGiveTheBitsOfOneRank) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const char* family : {"qwen2", "whisper"}) {
      Case what;
      what.family = family;
      what.shape = small_shape();
      what.shape.dtype = dtype;
      const std::string wide = train_on(what, 1);
      what.shape.narrow_gradients = true;
      what.micro_batches = 8;
      const std::string alone = train_on(what, 1);
      ASSERT_FALSE(alone.empty());
      EXPECT_NE(alone, wide);
      for (const int ranks : {2, 4, 8}) {
        for (int stage = 0; stage <= 3; ++stage) {
          what.shape.zero.stage = stage;
          what.shape.zero.reduce_bucket = stage % 2 == 0 ? 500'000'000 : 1500;  // several buckets of each type
          // What is sent is no wider than it is held.
          what.shape.zero.wire = DType::kF32;
          EXPECT_EQ(train_on(what, ranks), alone) << family << " " << name_of(dtype) << " stage " << stage;
        }
      }
      // The gradients that stay wide are narrowed on their way, the narrow ones are sent as they are.
      what.shape.zero.wire = dtype;
      for (int stage = 0; stage <= 3; ++stage) {
        what.shape.zero.stage = stage;
        const std::string sent = train_on(what, 2);
        EXPECT_NE(sent, alone);
        EXPECT_EQ(sent, train_on(what, 2)) << "the same bits again";
      }
    }
  }
}

TEST(Layouts, OffloadedActivationsGiveTheBitsOfOneRank) {
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
    Case what;
    what.shape = small_shape();
    what.shape.dtype = DType::kBF16;
    what.micro_batches = 8;  // each rank accumulates
    what.shape.recompute = mode;
    const std::string alone = train_on(what, 1);
    ASSERT_FALSE(alone.empty());
    what.shape.offload_activations = true;
    what.shape.offload_least_bytes = 0;
    for (const int ranks : {1, 2}) {
      for (int stage = 0; stage <= 3; ++stage) {
        what.shape.zero.stage = stage;
        EXPECT_EQ(train_on(what, ranks), alone) << name_of(mode) << " stage " << stage << " ranks " << ranks;
      }
    }
  }
}

TEST(Layouts, AdaptersGetTheBitsOfOneRank) {
  RandomStream random(2026, 13);
  const auto pick = [&](std::uint64_t count) { return static_cast<std::int64_t>(random.below(count)); };
  const std::vector<std::string> families = testing::tiny_families();
  for (int round = 0; round < 16; ++round) {
    Case what;
    what.family = families[static_cast<std::size_t>(round) % families.size()];
    what.shape = small_shape();
    what.shape.dtype = std::array{DType::kF32, DType::kBF16, DType::kF16}[static_cast<std::size_t>(pick(3))];
    what.lora = LoraConfig{};
    what.lora->rank = 1 + pick(6);
    what.lora->dropout = pick(2) == 0 ? 0 : 0.1;
    what.lora->rslora = pick(2) == 0;
    what.shape.narrow_gradients = what.shape.dtype != DType::kF32 && pick(2) == 0;
    if (pick(3) == 0) what.lora->layers = {1};
    if (pick(3) == 0) what.lora->modules_to_save = {what.family == "gpt2" ? "ln_f" : "lm_head"};
    if (what.family == "chatglm") what.lora->modules_to_save.clear();
    what.micro_batches = 4 * (1 + pick(3));
    std::string alone;
    for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
      what.shape.zero.stage = 0;
      what.shape.recompute = mode;
      const std::string this_mode = train_on(what, 1);
      if (alone.empty()) alone = this_mode;
      EXPECT_EQ(this_mode, alone) << what.family << " recompute " << static_cast<int>(mode);
    }
    for (const int ranks : {2, 4}) {
      what.shape.zero.stage = static_cast<int>(pick(4));
      what.shape.zero.reduce_bucket = 1 + pick(2000);
      what.shape.zero.gather_bucket = 1 + pick(20000);
      what.shape.zero.persistence_threshold = pick(600);
      EXPECT_EQ(train_on(what, ranks), alone) << what.family << " " << name_of(what.shape.dtype) << " stage "
                                              << what.shape.zero.stage << " ranks " << ranks << " round " << round;
    }
  }
}

TEST(Compression, NarrowGradientsComeNearAndHalveTheTraffic) {
  Case what;
  what.shape = small_shape();
  what.family = "llama";
  const std::string exact = train_on(what, 2);
  const auto first_norm = [](const std::string& text) {
    std::istringstream in(text);
    std::string loss, norm;
    in >> loss >> norm;
    return std::stod(norm);
  };
  for (const DType wire : {DType::kBF16, DType::kF16}) {
    for (int stage = 0; stage <= 3; ++stage) {
      what.shape.zero.stage = stage;
      what.shape.zero.wire = wire;
      const std::string narrow = train_on(what, 2);
      EXPECT_NEAR(first_norm(narrow), first_norm(exact), 0.01 * first_norm(exact)) << stage;
      EXPECT_NE(narrow, exact);
      EXPECT_EQ(narrow, train_on(what, 2)) << "the same bits again";
    }
  }
}

// Losses of a small model that sees the same batches again and again.
std::vector<double> overfit(bool one_bit) {
  const auto values = run_healthy_ranks(2, [&](Communicator& c) {
    set_threads(1);
    CpuDevice device;
    const auto model = make_model(tiny_config("llama"), "test");
    TrainShape shape = small_shape();
    shape.eval_rows = 0;
    shape.max_grad_norm = 0;
    shape.optimizer.kind = OptimizerKind::kAdamW;
    shape.zero.world = c.size();
    shape.zero.rank = c.rank();
    shape.zero.one_bit = one_bit;
    Engine engine(device, *model, shape, &c);
    engine.store().initialize(5);
    const auto batch = random_batch(shape.rows, shape.seq, kVocab, c.rank());
    std::string text;
    for (int step = 1; step <= 60; ++step) {
      const LossTotals totals = engine.micro_step(batch.view(), 1.0 / static_cast<double>(2 * batch.target_count));
      engine.update(3e-3, step);
      text += fmt::format("{} ", totals.mean());
    }
    return text;
  });
  std::istringstream in(values[0]);
  return {std::istream_iterator<double>(in), {}};
}

TEST(Compression, OneBitGradientsWithErrorFeedbackConverge) {
  const std::vector<double> exact = overfit(false);
  const std::vector<double> signs = overfit(true);
  ASSERT_EQ(exact.size(), 60u);
  ASSERT_EQ(signs.size(), 60u);
  EXPECT_LT(exact.back(), 0.5 * exact.front());
  EXPECT_LT(signs.back(), 0.75 * signs.front());
}

TEST(Compression, OneBitTrafficIsAThirtySecond) {
  const auto model = make_model(tiny_config("llama"), "test");
  const auto values = run_healthy_ranks(2, [&](Communicator& c) {
    set_threads(1);
    CpuDevice device;
    TrainShape shape = small_shape();
    shape.eval_rows = 0;
    shape.zero.world = c.size();
    shape.zero.rank = c.rank();
    shape.zero.one_bit = true;
    Engine engine(device, *model, shape, &c);
    engine.store().initialize(5);
    engine.micro_step(random_batch(1, shape.seq, kVocab).view(), 0.01);
    const Traffic& traffic = c.traffic();
    return fmt::format("{}", traffic.all_reduce + traffic.reduce_scatter + traffic.all_gather);
  });
  std::int64_t expected = 0;
  for (const Parameter& parameter : model->parameters()) expected += sign_bytes(parameter.shape.numel());
  for (const std::string& value : values) EXPECT_EQ(std::stoll(value), expected);
}

TEST(SparseUpdates, RowsWithoutAGradientStayAsTheyAre) {
  CpuDevice device;
  const auto model = make_model(tiny_config("llama"), "test");  // not tied
  for (const bool sparse : {false, true}) {
    TrainShape shape = small_shape();
    shape.eval_rows = 0;
    shape.sparse_embeddings = sparse;
    Engine engine(device, *model, shape);
    engine.store().initialize(5);
    const auto before = engine.store().rows(0, 0, kVocab, DType::kF32);
    const auto batch = random_batch(shape.rows, shape.seq, kVocab);
    for (int step = 1; step <= 2; ++step) {
      engine.micro_step(batch.view(), 0.01);
      engine.update(1e-2, step);
    }
    const auto after = engine.store().rows(0, 0, kVocab, DType::kF32);
    std::vector<bool> used(static_cast<std::size_t>(kVocab));
    for (const std::int32_t id : batch.ids) used[static_cast<std::size_t>(id)] = true;
    const std::size_t row = before.size() / static_cast<std::size_t>(kVocab);
    int same = 0;
    int changed = 0;
    for (std::size_t id = 0; id < used.size(); ++id) {
      const bool equal = std::equal(before.begin() + static_cast<std::ptrdiff_t>(id * row),
                                    before.begin() + static_cast<std::ptrdiff_t>((id + 1) * row),
                                    after.begin() + static_cast<std::ptrdiff_t>(id * row));
      changed += !equal;
      if (used[id] || id == 0) continue;  // the pad row is zeros
      same += equal;
      EXPECT_EQ(equal, sparse) << id << ": weight decay moves rows that are not used, unless updates are sparse";
    }
    EXPECT_GT(changed, 10);
    EXPECT_EQ(same > 10, sparse);
  }
}

// What all ranks together send in one step of `accumulation` micro-batches each, as the communicators count it.
Traffic traffic_of(int ranks, int stage, std::int64_t accumulation, DType dtype, std::int64_t* elements) {
  const auto model = make_model(tiny_config("llama"), "test");
  *elements = model->parameter_count();
  Traffic sum;
  const auto values = run_healthy_ranks(ranks, [&](Communicator& c) {
    set_threads(1);
    CpuDevice device;
    TrainShape shape = small_shape();
    shape.dtype = dtype;
    shape.accumulation = accumulation;
    shape.eval_rows = 0;
    shape.zero.stage = stage;
    shape.zero.world = c.size();
    shape.zero.rank = c.rank();
    shape.zero.max_reuse_distance = 0;  // stage 3: gather for the forward and again for the backward pass
    Engine engine(device, *model, shape, &c);
    engine.store().initialize(5);
    const auto batch = random_batch(shape.rows, shape.seq, kVocab, c.rank());
    const Traffic before = c.traffic();
    for (std::int64_t i = 0; i < accumulation; ++i) engine.micro_step(batch.view(), 0.01);
    engine.update(1e-3, 1);
    const Traffic after = c.traffic();
    return fmt::format("{} {} {}", after.reduce_scatter - before.reduce_scatter, after.all_gather - before.all_gather,
                       after.all_reduce - before.all_reduce);
  });
  for (const std::string& value : values) {
    std::uint64_t a = 0, b = 0, d = 0;
    std::istringstream(value) >> a >> b >> d;
    sum.reduce_scatter += a;
    sum.all_gather += b;
    sum.all_reduce += d;
  }
  return sum;
}

TEST(Communication, VolumeFollowsTheFormulas) {
  for (const int ranks : {2, 4}) {
    for (const std::int64_t accumulation : {1, 4}) {
      std::int64_t elements = 0;
      const auto others = static_cast<std::uint64_t>(ranks - 1);
      const auto steps = static_cast<std::uint64_t>(accumulation);
      // All ranks together: each tensor goes (n-1)/n times from each of n ranks.
      const Traffic plain = traffic_of(ranks, 0, accumulation, DType::kF32, &elements);
      const auto gradients = static_cast<std::uint64_t>(elements) * 4;
      EXPECT_EQ(plain.all_reduce, 2 * others * gradients) << "once a step, however many micro-batches";
      EXPECT_EQ(plain.reduce_scatter + plain.all_gather, 0u);
      const Traffic one = traffic_of(ranks, 1, accumulation, DType::kBF16, &elements);
      EXPECT_EQ(one.reduce_scatter, others * gradients);
      EXPECT_EQ(one.all_gather, others * gradients / 2) << "the weights, in bf16";
      const Traffic two = traffic_of(ranks, 2, accumulation, DType::kF32, &elements);
      EXPECT_EQ(two.reduce_scatter, others * gradients * steps) << "each micro-batch";
      EXPECT_EQ(two.all_gather, others * gradients);
      const Traffic three = traffic_of(ranks, 3, accumulation, DType::kF32, &elements);
      EXPECT_EQ(three.reduce_scatter, others * gradients * steps);
      // Forward and backward, but what is used around the turn of the two is gathered once.
      EXPECT_GT(three.all_gather, others * gradients * steps);
      EXPECT_LE(three.all_gather, 2 * others * gradients * steps);
    }
  }
}

TEST(Memory, EveryRankTakesExactlyWhatIsPlanned) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const std::int64_t threshold : {0, 1000}) {
        const auto results = run_healthy_ranks(3, [&](Communicator& c) {
          set_threads(1);
          const auto model = make_model(tiny_config("qwen3"), "test");
          TrainShape shape = small_shape();
          shape.dtype = dtype;
          shape.accumulation = 2;
          shape.zero.stage = stage;
          shape.zero.world = c.size();
          shape.zero.rank = c.rank();
          shape.zero.persistence_threshold = threshold;
          CpuDevice planner;
          const ProgramSet set = make_programs(*model, shape, planner);
          const MemoryReport report = memory_report(set.sizes, set.activation_lower_bound);
          CpuDevice device;
          Engine engine(device, *model, shape, &c);
          engine.store().initialize(5);
          const auto batch = random_batch(shape.rows, shape.seq, kVocab, c.rank());
          for (int i = 0; i < 2; ++i) engine.micro_step(batch.view(), 0.01);
          engine.update(1e-3, 1);
          engine.evaluate(batch.view());
          return planner.memory().peak == 0 && device.memory().peak == report.total && report.total > 0
                     ? std::string("exact")
                     : fmt::format("planned {}, taken {}", report.total, device.memory().peak);
        });
        for (const std::string& result : results)
          EXPECT_EQ(result, "exact") << name_of(dtype) << " stage " << stage << " threshold " << threshold;
      }
    }
  }
}

TEST(Memory, HigherStagesTakeLess) {
  const auto model = make_model(tiny_config("llama"), "test");
  std::size_t before = SIZE_MAX;
  for (int stage = 0; stage <= 3; ++stage) {
    TrainShape shape = small_shape();
    shape.dtype = DType::kBF16;
    shape.zero.stage = stage;
    shape.zero.world = 4;
    shape.zero.rank = 1;
    shape.zero.max_reuse_distance = 0;
    CpuDevice device;
    const ArenaSizes sizes = make_programs(*model, shape, device).sizes;
    const auto of = [&](Role role) { return sizes.bytes[static_cast<std::size_t>(role)]; };
    const std::size_t persistent = of(Role::kWeight) + of(Role::kGradient) + of(Role::kMaster) + of(Role::kMoment);
    EXPECT_LT(persistent, before) << "stage " << stage;
    before = persistent;
  }
}

}  // namespace
}  // namespace convoy
