// Counts what a training step takes from the heap, by standing in for malloc.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cpu/cpu_device.h"
#include "train/engine.h"
#include "train/tiny_model.h"

extern "C" {
void* __libc_malloc(std::size_t);                 // NOLINT
void* __libc_realloc(void*, std::size_t);         // NOLINT
void* __libc_memalign(std::size_t, std::size_t);  // NOLINT
}

namespace {

std::atomic<bool> counting = false;
std::atomic<std::size_t> calls = 0, largest = 0;

void count(std::size_t size) {
  if (!counting.load(std::memory_order_relaxed)) return;
  ++calls;
  std::size_t seen = largest;
  while (size > seen && !largest.compare_exchange_weak(seen, size)) {
  }
}

}  // namespace

extern "C" void* malloc(std::size_t size) {
  count(size);
  return __libc_malloc(size);
}
extern "C" void* realloc(void* old, std::size_t size) {
  count(size);
  return __libc_realloc(old, size);
}
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t size) {
  count(size);
  return __libc_memalign(alignment, size);
}
extern "C" int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  count(size);
  *out = __libc_memalign(alignment, size);
  return *out == nullptr;
}

namespace convoy {
namespace {

TEST(Allocation, TheCounterCounts) {
  counting = true;
  void* volatile block = std::malloc(12345);
  counting = false;
  std::free(block);
  EXPECT_GE(calls.exchange(0), 1u);
  EXPECT_GE(largest.exchange(0), 12345u);
}

TEST(Allocation, AStepTakesNoTensorMemory) {
  for (const std::string& family : testing::tiny_families()) {
    for (const auto& [dtype, offload] : {std::pair{DType::kF32, false}, std::pair{DType::kF32, true},
                                         std::pair{DType::kBF16, false}, std::pair{DType::kBF16, true}}) {
      CpuDevice device;
      const auto model = make_model(testing::tiny_config(family), "test");
      TrainShape shape;
      shape.rows = 4;
      shape.seq = 64;
      shape.accumulation = 2;
      shape.eval_rows = 4;
      shape.dtype = dtype;
      shape.loss.chunk_rows = 64;
      shape.offload_activations = shape.zero.offload_param = offload;
      shape.offload_least_bytes = 0;
      testing::set_audio(family, shape);
      Engine engine(device, *model, shape);
      engine.store().initialize(1);
      const auto batch = testing::random_batch(4, 64, 97);
      const auto step = [&] {
        engine.micro_step(batch.view(), 0.01);
        engine.micro_step(batch.view(), 0.01);
        engine.update(1e-3, 1);
        engine.evaluate(batch.view());
      };
      step();  // libraries make ready what they keep
      calls = largest = 0;
      counting = true;
      step();
      counting = false;
      // The matrix library keeps its books on the heap, some hundred bytes a call; tensors and scratch never come from
      // there.
      EXPECT_LT(largest.load(), 4096u) << family << " " << name_of(dtype) << (offload ? " offloaded" : "");
    }
  }
}

}  // namespace
}  // namespace convoy
