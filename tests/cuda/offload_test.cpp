// Offloaded activations and weights on the GPU: the copy lanes' order with the kernels, replayed from a recording too.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "cuda/cuda_test.h"
#include "train/tiny_model.h"

namespace convoy {
namespace {

using CudaOffload = testing::CudaTest;

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>((i * 2654435761U + seed) >> 13);
  return made;
}

// A tensor goes out, its memory is used for something else, and it comes back: without marks the copies, which take
// longer than the kernels' lane, would meet the wrong bytes.
TEST_F(CudaOffload, MarksOrderTheLanes) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const auto source = device_->allocate(kBytes), other = device_->allocate(kBytes), work = device_->allocate(kBytes),
             back = device_->allocate(kBytes);
  const auto host = device_->allocate_host(kBytes);
  const auto ready = device_->make_mark(), gone = device_->make_mark(), there = device_->make_mark();
  device_->copy_in(other->data(), pattern(kBytes, 99));
  const auto journey = [&] {
    device_->start_copy(work->data(), source->data(), kBytes);
    device_->set_mark(*ready, Lane::kWork);
    device_->await_mark(*ready, Lane::kToHost);
    device_->start_copy_out({host->data(), kBytes}, work->data(), Lane::kToHost);
    device_->set_mark(*gone, Lane::kToHost);
    device_->start_copy(back->data(), other->data(), kBytes);  // beside the copy
    device_->await_mark(*gone, Lane::kWork);
    device_->start_copy(work->data(), other->data(), kBytes);  // the memory is another's now
    device_->set_mark(*ready, Lane::kWork);
    device_->await_mark(*ready, Lane::kToDevice);
    device_->start_copy_in(back->data(), {host->data(), kBytes}, Lane::kToDevice);
    device_->set_mark(*there, Lane::kToDevice);
    device_->await_mark(*there, Lane::kWork);
    device_->start_copy(work->data(), back->data(), kBytes);
  };
  std::unique_ptr<Recording> recording;
  std::vector<std::byte> got(kBytes);
  for (unsigned round = 0; round < 8; ++round) {
    const std::vector<std::byte> given = pattern(kBytes, round);
    device_->copy_in(source->data(), given);
    if (round < 2) {
      journey();
    } else {
      if (!recording) recording = device_->record(journey);
      ASSERT_NE(recording, nullptr);
      recording->replay();
    }
    device_->copy_out(got, work->data());
    EXPECT_TRUE(got == given) << "round " << round;
  }
  journey();  // the marks outlive the recording
  device_->copy_out(got, work->data());
  EXPECT_TRUE(got == pattern(kBytes, 7));
}

struct Outcome {
  std::vector<double> losses;
  std::uint64_t state = 0;
  std::size_t device_bytes = 0;
};

// Wide enough that copies take their time, of six blocks.
Outcome train(RecomputeMode mode, bool activations, bool weights) {
  const Json config = {{"model_type", "qwen2"},     {"vocab_size", 512},          {"hidden_size", 512},
                       {"intermediate_size", 1024}, {"num_hidden_layers", 6},     {"num_attention_heads", 8},
                       {"num_key_value_heads", 2},  {"tie_word_embeddings", true}};
  CudaDevice device;
  const auto model = make_model(config, "test");
  TrainShape shape;
  shape.rows = 4;
  shape.seq = 512;
  shape.accumulation = 2;
  shape.dtype = DType::kBF16;
  shape.max_grad_norm = 1;
  shape.recompute = mode;
  shape.has_own_memory = true;
  shape.offload_activations = activations;
  shape.zero.offload_param = weights;
  shape.offload_least_bytes = std::size_t{64} << 10;
  Engine engine(device, *model, shape);
  engine.store().initialize(5);
  Outcome outcome;
  for (int step = 0; step < 4; ++step) {
    for (int m = 0; m < 2; ++m) {
      const auto batch = testing::random_batch(shape.rows, shape.seq, 512, (2 * step + m) * shape.rows);
      outcome.losses.push_back(engine.micro_step(batch.view(), 1.0 / 4000).mean());
    }
    engine.update(1e-3, step + 1);
  }
  Hasher hasher;
  for (const Role role : {Role::kWeight, Role::kMaster, Role::kMoment}) {
    for (const Slot& slot : engine.programs().layout.slots(role)) hasher.add(engine.store().read(role, slot.name));
  }
  outcome.state = hasher.value();
  outcome.device_bytes = device.memory().peak;
  EXPECT_EQ(outcome.device_bytes, engine.programs().sizes.total());
  EXPECT_EQ(engine.programs().sizes.host_total() > 0, activations || weights);
  return outcome;
}

TEST_F(CudaOffload, ChangesMemoryAlone) {
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
    const Outcome kept = train(mode, false, false);
    for (const auto& [activations, weights] : {std::pair{true, false}, std::pair{false, true}, std::pair{true, true}}) {
      const Outcome away = train(mode, activations, weights);
      EXPECT_EQ(kept.losses, away.losses) << name_of(mode) << " " << activations << weights;
      EXPECT_EQ(kept.state, away.state) << name_of(mode) << " " << activations << weights;
      EXPECT_LT(away.device_bytes, kept.device_bytes) << name_of(mode) << " " << activations << weights;
    }
  }
}

}  // namespace
}  // namespace convoy
