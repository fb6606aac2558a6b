// Measures what a device does at best, as plan/ceilings keeps it. Every figure is a mean over `seconds` of running
// without a pause, on random data: on zeros, and in the first moments before it is warm, a card is faster.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/ceilings.h"
#include "runtime/device.h"

namespace convoy {

struct MeasureOptions {
  double seconds = 2;
  // y[tokens, out] = x[tokens, in] · Wᵀ, and the products of its backward pass where they are wanted too.
  struct Layer {
    std::int64_t tokens = 0, in = 0, out = 0;
    bool backward = false;
  };
  std::vector<Layer> layers;
  struct Heads {
    std::int64_t rows = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  };
  std::vector<Heads> attention;
  std::size_t copy_bytes = 0, link_bytes = 0;
  // The card's power now, in watts; may be empty.
  std::function<std::optional<double>()> power;
};

// Sizes that keep the device busy for a few milliseconds at least; no attention and no link for a device in host
// memory.
MeasureOptions usual_sizes(const Device& device);

// Of one dtype; `label` names it in the result ("tf32" is f32 on a device that was made so). `tell` hears of each
// figure when it is there. `power` becomes the mean power during the best one.
std::vector<Ceilings::MatrixProduct> measure_products(
    Device& device, DType dtype, const std::string& label, const MeasureOptions& options,
    const std::function<void(const Ceilings::MatrixProduct&)>& tell = {}, std::optional<double>* power = nullptr);
// Causal, in rows of one length.
std::vector<Ceilings::Attention> measure_attention(Device& device, DType dtype, const MeasureOptions& options,
                                                   const std::function<void(const Ceilings::Attention&)>& tell = {});
// 10⁹ bytes a second within the device's memory, read and written ones together.
double measure_copy(Device& device, const MeasureOptions& options);
// Between page-locked host memory and the device.
Ceilings::Link measure_link(Device& device, const MeasureOptions& options);
// Every pair of the devices, by their place in the list.
std::vector<Ceilings::PeerLink> measure_peers(std::span<const std::unique_ptr<Device>> devices,
                                              const MeasureOptions& options,
                                              const std::function<void(const Ceilings::PeerLink&)>& tell = {});

}  // namespace convoy
