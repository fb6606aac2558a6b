// Trains a model with random tokens, and random features where it hears, and prints one JSON line: tokens per second,
// multiples of real time, peak memory, time to the first step. The same arguments and line as
// bench/peers/torch_train.py.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/random.h"
#include "bench/random_batch.h"
#include "devices/make_device.h"
#include "models/lora.h"
#include "plan/fit_recompute.h"
#include "plan/model_flops.h"
#include "train/engine.h"

namespace {

using namespace convoy;  // NOLINT
using bench::RandomBatch;

constexpr std::int64_t kTokens = 512, kLabels = 128;  // of a row, unless --seq says

struct Arguments {
  std::string config, dtype = "f32", device = "cpu";
  RecomputeMode recompute = RecomputeMode::kNone;
  std::int64_t batch = 4, seq = 0, accum = 1, steps = 10, lora_rank = 0;
  double memory_limit = 0;  // GB
  int threads = 0;
  bool fp8 = false, profile = false, any_order = false, bf16_state = false, narrow_gradients = false, offload = false,
       offload_param = false, offload_activations = false, verbose = false;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Normal weights, one block of them again and again: quick, and as random as timing asks for.
void fill_weights(ParameterStore& store) {
  RandomStream random(1, 0);
  std::vector<float> block(std::size_t{1} << 20);
  for (float& v : block) v = 0.02F * random.normal();
  const auto& parameters = store.model().parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const std::int64_t rows = parameters[p].shape[0], width = parameters[p].shape.numel() / rows;
    const std::int64_t at_once = std::max<std::int64_t>(1, static_cast<std::int64_t>(block.size()) / width);
    std::vector<float> ones;
    if (parameters[p].init_std == 0) ones.assign(block.size(), parameters[p].init_value);
    for (std::int64_t r = 0; r < rows; r += at_once) {
      const std::int64_t count = std::min(at_once, rows - r);
      store.set_rows(
          p, r, DType::kF32,
          std::as_bytes(std::span(ones.empty() ? block : ones).first(static_cast<std::size_t>(count * width))));
    }
  }
}

int run(const Arguments& arguments) {
  const double begin = now();
  if (arguments.verbose) set_log_level(LogLevel::kDebug);
  set_threads(arguments.threads);
  auto model = make_model(read_json(arguments.config), arguments.config);
  if (arguments.lora_rank > 0) {
    LoraConfig lora;
    lora.rank = arguments.lora_rank;
    model = add_lora(std::move(model), lora, "--lora-rank");
  }
  const auto dtype = parse_dtype(arguments.dtype);
  if (!dtype) throw usage_error("no such dtype");
  const std::unique_ptr<Device> device = make_device(arguments.device, {0, 1, !arguments.any_order});
  TrainShape shape;
  const bench::RowShape rows(*model, arguments.batch,
                             arguments.seq > 0 ? arguments.seq : (model->audio() ? kLabels : kTokens));
  shape.rows = rows.rows;
  shape.seq = rows.seq;
  shape.audio_windows = rows.audio ? 1 : 0;
  shape.audio_frames = rows.frames;
  shape.accumulation = arguments.accum;
  shape.dtype = *dtype;
  shape.fp8 = arguments.fp8;
  if (shape.fp8 && shape.dtype != DType::kBF16) throw usage_error("--fp8 needs --dtype bf16");
  shape.deterministic = !arguments.any_order;
  if (arguments.bf16_state) {
    shape.optimizer.moment_dtype = DType::kBF16;
    shape.master_weights = false;
  }
  shape.narrow_gradients = arguments.narrow_gradients;
  shape.has_own_memory = arguments.device != "cpu";
  shape.offload_optimizer = arguments.offload;
  shape.offload_activations = arguments.offload_activations;
  shape.zero.offload_param = arguments.offload_param;
  shape.max_grad_norm = 1;
  shape.weight_decay = 0.01;
  shape.recompute = arguments.recompute;
  if (shape.recompute == RecomputeMode::kFit) {
    shape.rates = machine_rates({}, shape.dtype, shape.has_own_memory);
    MemoryLimit limit{device->own_memory().value_or(available_memory())};
    if (arguments.memory_limit > 0) limit.device = static_cast<std::size_t>(1e9 * arguments.memory_limit);
    shape.recompute_steps = fitting_recompute_steps(*model, shape, *device, limit);
  }
  Engine engine(*device, *model, shape);
  fill_weights(engine.store());
  engine.micro_executor().set_profiling(arguments.profile);
  std::vector<double> seconds, losses;
  double first = 0, update_seconds = 0;
  for (std::int64_t step = 0; step < arguments.steps; ++step) {
    std::vector<RandomBatch> batches;
    double targets = 0;
    for (std::int64_t m = 0; m < arguments.accum; ++m) {
      batches.push_back(bench::random_batch(rows, static_cast<std::uint64_t>(step * arguments.accum + m)));
      targets += batches.back().target_count;
    }
    const double start = now();
    for (const RandomBatch& batch : batches) engine.start_micro_step(batch.view(), 1 / targets);
    if (arguments.profile) device->synchronize();
    const double updating = now();
    engine.update(1e-4, step + 1);
    update_seconds += now() - updating;
    LossTotals totals;
    for (const LossTotals& each : engine.take_losses()) totals += each;
    seconds.push_back(now() - start);
    losses.push_back(totals.mean());
    if (step == 0) first = now() - begin;
  }
  std::vector<double> rest(
      seconds.begin() + std::min<std::ptrdiff_t>(3, static_cast<std::ptrdiff_t>(seconds.size()) - 1), seconds.end());
  std::sort(rest.begin(), rest.end());
  const double tokens = static_cast<double>(rows.rows * rows.seq * arguments.accum);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  Json line = {{"trainer", "convoy"},
               {"device", device->name()},
               {"threads", threads()},
               {"parameters", model->parameter_count()},
               {"dtype", arguments.dtype},
               {"fp8", arguments.fp8},
               {"narrow_gradients", arguments.narrow_gradients},
               {"batch", arguments.batch},
               {"seq", rows.seq},
               {"accum", arguments.accum},
               {"steps", arguments.steps},
               {"tokens_per_second", tokens / rest[rest.size() / 2]},
               {"gflops", model_flops(engine.programs().micro) * static_cast<double>(arguments.accum) /
                              rest[rest.size() / 2] * 1e-9},
               {"peak_rss_bytes", usage.ru_maxrss * 1024L},
               {"device_bytes", device->memory().peak},
               {"planned_bytes", engine.programs().sizes.total()},
               {"planned_host_bytes", engine.programs().sizes.host_total()},
               {"seconds_to_first_step", first},
               {"losses", losses}};
  if (rows.audio) {
    line["audio_seconds"] = rows.audio_seconds() * static_cast<double>(arguments.accum);
    line["times_real_time"] = rows.audio_seconds() * static_cast<double>(arguments.accum) / rest[rest.size() / 2];
  }
  fmt::print("{}\n", line.dump());
  if (!arguments.profile) return 0;
  double total = 0;
  for (const auto& [name, spent] : engine.micro_executor().profile()) total += spent;
  for (const auto& [name, spent] : engine.micro_executor().profile()) {
    fmt::print(stderr, "{:28} {:8.2f} ms a step  {:5.1f}%\n", name, 1e3 * spent / static_cast<double>(arguments.steps),
               100 * spent / total);
  }
  fmt::print(stderr, "{:28} {:8.2f} ms a step\n", "update",
             1e3 * update_seconds / static_cast<double>(arguments.steps));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("train with random tokens and time it");
  app.add_option("--config", arguments.config, "config.json")->required();
  app.add_option("--dtype", arguments.dtype, "f32 or bf16");
  app.add_flag("--fp8", arguments.fp8, "with --dtype bf16: the blocks' products in 8 bits");
  app.add_option("--batch", arguments.batch, "sequences of a micro-batch");
  app.add_option("--seq", arguments.seq, "tokens of a sequence; of its labels, where a model hears (512; 128)");
  app.add_option("--accum", arguments.accum, "micro-batches of a step");
  app.add_option("--steps", arguments.steps, "steps; the first three do not count");
  app.add_option("--threads", arguments.threads, "threads");
  app.add_option("--recompute", arguments.recompute, "none, selective, full or fit")
      ->transform(CLI::CheckedTransformer(std::map<std::string, RecomputeMode>{{"none", RecomputeMode::kNone},
                                                                               {"selective", RecomputeMode::kSelective},
                                                                               {"full", RecomputeMode::kFull},
                                                                               {"fit", RecomputeMode::kFit}}));
  app.add_option("--memory-limit", arguments.memory_limit, "GB (10⁹ bytes) that --recompute fit may take");
  app.add_option("--lora-rank", arguments.lora_rank, "train adapters of this rank beside every linear layer");
  app.add_option("--device", arguments.device, "cpu or cuda");
  app.add_flag("--profile", arguments.profile, "time every operation");
  app.add_flag("--offload", arguments.offload, "the optimizer's state in host memory");
  app.add_flag("--offload-param", arguments.offload_param, "weights in host memory until their block is near");
  app.add_flag("--offload-activations", arguments.offload_activations,
               "what the backward pass reads late in host memory until then");
  app.add_flag("--bf16-state", arguments.bf16_state, "bf16 moments and no master weights");
  app.add_flag("--narrow-gradients", arguments.narrow_gradients, "gradients of matrices in the dtype of the run");
  app.add_flag("--verbose", arguments.verbose, "the log of the choices made");
  app.add_flag("--any-order", arguments.any_order,
               "sums in any order: no fixed tree over micro-batches, no deterministic kernels");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(arguments);
  } catch (const std::exception& failure) {
    fmt::print(stderr, "{}\n", failure.what());
    return 1;
  }
}
