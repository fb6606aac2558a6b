#include "measure/measure_ceilings.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/random.h"
#include "graph/ops/attention.h"
#include "graph/ops/linear.h"

namespace convoy {
namespace {

constexpr double kChunkSeconds = 0.05;  // between waits: the queue of work neither empties for long nor fills up
constexpr double kGiga = 1e-9, kTera = 1e-12;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of one `run`, over `seconds` of them; `between` is called while nothing runs.
template <typename Run, typename Wait, typename Between>
double sustained(double seconds, Run run, Wait wait, Between between) {
  run();  // what is made ready with the first is
  wait();
  double begin = now();
  run();
  wait();
  const auto chunk =
      static_cast<std::int64_t>(std::clamp(std::min(kChunkSeconds, seconds) / std::max(now() - begin, 1e-7), 1.0, 1e5));
  std::int64_t runs = 0;
  begin = now();
  while (true) {
    for (std::int64_t i = 0; i < chunk; ++i) run();
    runs += chunk;
    wait();
    const double spent = now() - begin;
    between();
    if (spent >= seconds) return spent / static_cast<double>(runs);
  }
}

template <typename Run>
double sustained(Device& device, double seconds, Run run) {
  return sustained(
      seconds, run, [&] { device.synchronize(); }, [] {});
}

struct Tensor {
  TensorSpec spec;
  std::unique_ptr<DeviceMemory> memory;
};

Tensor empty_tensor(Device& device, const TensorSpec& spec) {
  return {spec, device.allocate(spec.bytes())};
}

void store(DType dtype, float value, std::byte* at) {
  const auto put = [at](const auto& element) { std::memcpy(at, &element, sizeof(element)); };
  switch (dtype) {
    case DType::kF32:
      return put(value);
    case DType::kBF16:
      return put(to_bf16(value));
    case DType::kF16:
      return put(to_f16(value));
    default:
      throw internal_error("a measurement of a type that is not trained in");
  }
}

// Normal values; one block of them again and again.
Tensor random_tensor(Device& device, const TensorSpec& spec) {
  Tensor tensor = empty_tensor(device, spec);
  constexpr std::size_t kBlock = std::size_t{1} << 18;
  RandomStream random(1, static_cast<std::uint64_t>(spec.numel()));
  const std::size_t size = size_of(spec.dtype), count = static_cast<std::size_t>(spec.numel());
  std::vector<std::byte> block(std::min(kBlock, count) * size);
  for (std::size_t at = 0; at < block.size(); at += size) store(spec.dtype, random.normal(), block.data() + at);
  for (std::size_t at = 0; at < spec.bytes(); at += block.size()) {
    device.copy_in(tensor.memory->data() + at,
                   std::span<const std::byte>(block).first(std::min(block.size(), spec.bytes() - at)));
  }
  return tensor;
}

// An operation alone, with memory of its own for what it makes.
class SingleOp {
 public:
  SingleOp(Device& device, const Op& op, const std::vector<const Tensor*>& inputs) {
    std::vector<const TensorSpec*> specs;
    for (const Tensor* tensor : inputs) {
      specs.push_back(&tensor->spec);
      inputs_.push_back(tensor->memory->data());
    }
    const std::vector<TensorSpec> made = op.infer(specs);
    for (const TensorSpec& spec : made) {
      results_.push_back(empty_tensor(device, spec));
      outputs_.push_back(results_.back().memory->data());
    }
    flops_ = op.cost(specs, made).flops;
    workspace_ = device.allocate(device.workspace(op, specs, made));
    kernel_ = device.prepare(op, specs, made);
  }
  void run() { kernel_->run({inputs_, outputs_, workspace_->data()}); }
  double flops() const { return flops_; }
  const Tensor& result(std::size_t i) const { return results_[i]; }

 private:
  std::vector<std::byte*> inputs_, outputs_;
  std::vector<Tensor> results_;
  std::unique_ptr<DeviceMemory> workspace_;
  std::unique_ptr<Kernel> kernel_;
  double flops_ = 0;
};

}  // namespace

MeasureOptions usual_sizes(const Device& device) {
  MeasureOptions options;
  if (device.host_memory()) {
    options.layers = {{1024, 1024, 1024, false}, {512, 1024, 2816, true}};
    options.copy_bytes = std::size_t{256} << 20;
    return options;
  }
  options.layers = {{8192, 8192, 8192, false}, {16384, 4096, 14336, true}};
  options.attention = {{16, 1024, 32, 8, 128}, {1, 32768, 32, 8, 128}};
  options.copy_bytes = std::size_t{1} << 30;
  options.link_bytes = std::size_t{256} << 20;
  return options;
}

std::vector<Ceilings::MatrixProduct> measure_products(Device& device, DType dtype, const std::string& label,
                                                      const MeasureOptions& options,
                                                      const std::function<void(const Ceilings::MatrixProduct&)>& tell,
                                                      std::optional<double>* power) {
  std::vector<Ceilings::MatrixProduct> products;
  double best = 0;
  const auto measure = [&](const std::string& name, const Op& op, const std::vector<const Tensor*>& inputs,
                           const auto& product_of_op) {
    SingleOp single(device, op, inputs);
    double watts = 0, looks = 0;
    const double seconds = sustained(
        options.seconds, [&] { single.run(); }, [&] { device.synchronize(); },
        [&] {
          if (!options.power) return;
          if (const std::optional<double> look = options.power()) {
            watts += *look;
            ++looks;
          }
        });
    Ceilings::MatrixProduct result = product_of_op(inputs, single);
    result.name = name;
    result.dtype = label;
    result.tflops = single.flops() / seconds * kTera;
    if (result.tflops > best) {
      best = result.tflops;
      if (power != nullptr) *power = looks > 0 ? std::optional(watts / looks) : std::nullopt;
    }
    products.push_back(result);
    if (tell) tell(result);
  };
  const auto shape_of = [](const auto& op) {
    return [&op](const std::vector<const Tensor*>& inputs, const SingleOp& single) {
      std::vector<const TensorSpec*> specs;
      for (const Tensor* tensor : inputs) specs.push_back(&tensor->spec);
      const Product product = product_of(op, specs, std::span(&single.result(0).spec, 1));
      Ceilings::MatrixProduct result;
      result.m = product.m;
      result.n = product.n;
      result.k = product.k;
      return result;
    };
  };
  for (const MeasureOptions::Layer& layer : options.layers) {
    const Tensor x = random_tensor(device, {dtype, {layer.tokens, layer.in}});
    const Tensor weight = random_tensor(device, {dtype, {layer.out, layer.in}});
    const Linear forward;
    measure("forward", forward, {&x, &weight}, shape_of(forward));
    if (!layer.backward) continue;
    const Tensor dy = random_tensor(device, {dtype, {layer.tokens, layer.out}});
    const LinearInputGrad input_grad(false);
    measure("input gradient", input_grad, {&dy, &weight}, shape_of(input_grad));
    const LinearWeightGrad weight_grad(false);
    measure("weight gradient", weight_grad, {&x, &dy}, shape_of(weight_grad));
  }
  return products;
}

std::vector<Ceilings::Attention> measure_attention(Device& device, DType dtype, const MeasureOptions& options,
                                                   const std::function<void(const Ceilings::Attention&)>& tell) {
  std::vector<Ceilings::Attention> results;
  for (const MeasureOptions::Heads& heads : options.attention) {
    AttentionShape shape;
    shape.heads = heads.heads;
    shape.kv_heads = heads.kv_heads;
    shape.head_dim = heads.head_dim;
    shape.scale = 1 / std::sqrt(static_cast<double>(heads.head_dim));
    shape.row_tokens = heads.seq;
    const std::int64_t tokens = heads.rows * heads.seq;
    const Tensor qkv = random_tensor(device, {dtype, {tokens, (heads.heads + 2 * heads.kv_heads) * heads.head_dim}});
    const Tensor d_o = random_tensor(device, {dtype, {tokens, heads.heads * heads.head_dim}});
    const Tensor seq_start = empty_tensor(device, {DType::kI32, {tokens}});
    std::vector<std::int32_t> starts;
    for (std::int64_t t = 0; t < tokens; ++t) starts.push_back(static_cast<std::int32_t>(t - t % heads.seq));
    device.copy_in(seq_start.memory->data(), std::as_bytes(std::span(starts)));
    device.set_whole_rows(true);
    SingleOp forward(device, Attention(shape), {&qkv, &seq_start});
    const double forward_seconds = sustained(device, options.seconds, [&] { forward.run(); });
    SingleOp backward(device, AttentionGrad(shape), {&d_o, &qkv, &forward.result(0), &forward.result(1), &seq_start});
    const double backward_seconds = sustained(device, options.seconds, [&] { backward.run(); });
    results.push_back({heads.seq, heads.heads, heads.kv_heads, heads.head_dim,
                       forward.flops() / forward_seconds * kTera, backward.flops() / backward_seconds * kTera});
    if (tell) tell(results.back());
  }
  return results;
}

double measure_copy(Device& device, const MeasureOptions& options) {
  const auto elements = static_cast<std::int64_t>(options.copy_bytes / sizeof(float));
  const Tensor from = random_tensor(device, {DType::kF32, {elements}});
  const Tensor to = random_tensor(device, {DType::kF32, {elements}});
  const double seconds = sustained(
      device, options.seconds, [&] { device.start_copy(to.memory->data(), from.memory->data(), from.spec.bytes()); });
  return 2 * static_cast<double>(from.spec.bytes()) / seconds * kGiga;
}

Ceilings::Link measure_link(Device& device, const MeasureOptions& options) {
  const std::size_t bytes = options.link_bytes;
  const auto host_in = device.allocate_host(bytes), host_out = device.allocate_host(bytes);
  const auto there_in = device.allocate(bytes), there_out = device.allocate(bytes);
  device.synchronize();
  const auto in = [&] { device.start_copy_in(there_in->data(), {host_in->data(), bytes}, Lane::kToDevice); };
  const auto out = [&] { device.start_copy_out({host_out->data(), bytes}, there_out->data(), Lane::kToHost); };
  const double size = static_cast<double>(bytes);
  Ceilings::Link link;
  link.to_device = size / sustained(device, options.seconds, in) * kGiga;
  link.to_host = size / sustained(device, options.seconds, out) * kGiga;
  link.both = 2 * size /
              sustained(device, options.seconds,
                        [&] {
                          in();
                          out();
                        }) *
              kGiga;
  return link;
}

std::vector<Ceilings::PeerLink> measure_peers(std::span<const std::unique_ptr<Device>> devices,
                                              const MeasureOptions& options,
                                              const std::function<void(const Ceilings::PeerLink&)>& tell) {
  std::vector<Ceilings::PeerLink> links;
  const std::size_t bytes = options.link_bytes;
  const double seconds = std::min(options.seconds, 0.5);  // a link does not grow warm, and there are many pairs
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (std::size_t j = i + 1; j < devices.size(); ++j) {
      Device &one = *devices[i], &other = *devices[j];
      const auto one_from = one.allocate(bytes), one_to = one.allocate(bytes);
      const auto other_from = other.allocate(bytes), other_to = other.allocate(bytes);
      const auto wait = [&] {
        one.synchronize();
        other.synchronize();
      };
      wait();
      bool linked = true;
      const auto there = [&] {
        linked = linked && other.start_peer_copy(other_to->data(), one, one_from->data(), bytes);
      };
      const auto back = [&] {
        linked = linked && one.start_peer_copy(one_to->data(), other, other_from->data(), bytes);
      };
      there();
      back();
      wait();
      if (!linked) continue;
      Ceilings::PeerLink link;
      link.from = static_cast<std::int64_t>(i);
      link.to = static_cast<std::int64_t>(j);
      const double size = static_cast<double>(bytes);
      link.rate = size / sustained(seconds, there, wait, [] {}) * kGiga;
      link.both = 2 * size /
                  sustained(
                      seconds,
                      [&] {
                        there();
                        back();
                      },
                      wait, [] {}) *
                  kGiga;
      links.push_back(link);
      if (tell) tell(link);
    }
  }
  return links;
}

}  // namespace convoy
