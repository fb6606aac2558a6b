#include "train/run_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "config/resolve.h"
#include "graph/ops/host_copy.h"
#include "models/freeze.h"
#include "plan/fit_recompute.h"
#include "plan/fp8_products.h"
#include "plan/memory_report.h"
#include "plan/model_flops.h"
#include "train/run_data.h"
#include "train/speech_evaluation.h"

namespace convoy {
namespace {

// The weights that a checkpoint writes: all, or with LoRA what is trained.
std::size_t written_bytes(const ModelSource& source) {
  if (source.adapter != nullptr) return static_cast<std::size_t>(trainable_count(*source.model)) * sizeof(float);
  return static_cast<std::size_t>(source.model->parameter_count()) * size_of(source.stored);
}

// "7 parameters", and how many of them are trained where not all are.
std::string parameters_text(const Model& model) {
  const std::int64_t all = model.parameter_count(), trained = trainable_count(model);
  if (all == trained) return fmt::format("{} parameters", all);
  return fmt::format("{} parameters, {} of them trained ({:.2f}%)", all, trained,
                     100 * static_cast<double>(trained) / static_cast<double>(all));
}

// What a checkpoint copies before it is written beside training: this rank's optimizer state, on the first rank the
// weights.
std::size_t snapshot_bytes(const RunConfig& config, const ModelSource& source, const ProgramSet& programs, int rank) {
  if (!config.async_save || config.save_strategy == Interval::kNo) return 0;
  std::size_t bytes = rank == 0 ? written_bytes(source) : 0;
  if (config.save_only_model) return bytes;
  for (Role role : {Role::kMaster, Role::kMoment}) {
    for (const Slot& slot : programs.layout.slots(role)) bytes += slot.spec.bytes();
  }
  return bytes;
}

// The model and the room to write down what it hears at evaluations.
std::size_t prediction_bytes(const RunConfig& config, const ModelSource& source, const TrainShape& shape,
                             const Device& device) {
  if (!config.predict_with_generate || !source.model->audio() || !evaluates(config)) return 0;
  return generator_bytes(device, *source.model, prediction_room(config, source, shape));
}

MemoryReport full_report(const RunConfig& config, const ModelSource& source, const ProgramSet& programs,
                         const TrainShape& shape, const Device& device) {
  MemoryReport report = memory_report(programs.sizes, programs.activation_lower_bound);
  add_line(report, "communication", communication_memory(shape.zero.world), shape.has_own_memory);
  add_line(report, "checkpoint copy", snapshot_bytes(config, source, programs, shape.zero.rank), shape.has_own_memory);
  if (const std::size_t bytes = prediction_bytes(config, source, shape, device); bytes > 0)
    add_line(report, "predictions", bytes, false);
  return report;
}

BytesBeside beside_the_arenas(const RunConfig& config, const ModelSource& source, const Device& device) {
  return [&](const TrainShape& shape, const ProgramSet& programs) -> std::size_t {
    const std::size_t predictions = prediction_bytes(config, source, shape, device);
    if (shape.has_own_memory) return predictions;
    return predictions + communication_memory(shape.zero.world) +
           snapshot_bytes(config, source, programs, shape.zero.rank);
  };
}

// What --print-program prints.
std::string listing(const ProgramSet& programs) {
  std::string text;
  for (std::size_t bucket = 0; bucket <= programs.shorter.size(); ++bucket) {
    const BatchPrograms& each = programs.of_bucket(bucket);
    text += print(each.micro);
    if (each.eval) text += print(*each.eval);
  }
  if (programs.reduce) text += print(*programs.reduce);
  return text + print(programs.update);
}

// The shapes of micro-batches beside the one with the longest rows.
std::string buckets_text(const TrainShape& shape, const ProgramSet& programs) {
  std::string text;
  for (std::size_t bucket = 0; bucket < shape.buckets() && shape.buckets() > 1; ++bucket) {
    const TrainShape each = shape.of_bucket(bucket);
    text += fmt::format("bucket of {} x {} tokens, windows of {:.2f} s: {:.1f} GFLOP per micro-batch\n", each.rows,
                        each.seq, static_cast<double>(each.audio_frames) / 100,
                        programs.of_bucket(bucket).micro.cost().flops * 1e-9);
  }
  return text;
}

// "fit (12 steps, 4.1% of the arithmetic)"
std::string recompute_text(const TrainShape& shape, const ProgramSet& programs) {
  if (shape.recompute != RecomputeMode::kFit) return std::string(name_of(shape.recompute));
  const double whole = programs.micro.cost().flops;
  return fmt::format("fit ({} steps, {:.1f}% of the arithmetic)", shape.recompute_steps,
                     100 * (whole - model_flops(programs.micro)) / whole);
}

// Bytes that a program copies from the device to the host; as many come back.
double offloaded_bytes(const Program& program) {
  double bytes = 0;
  for (const Instruction& each : program.instructions) {
    if (dynamic_cast<const OffloadStart*>(each.op.get()) != nullptr) bytes += each.cost.bytes;
  }
  return bytes;
}

// What offloaded activations ask of the link, and how long it takes for that where it was measured.
std::string offload_text(const ProgramSet& programs, const std::optional<Ceilings>& ceilings) {
  const double bytes = offloaded_bytes(programs.micro);
  if (bytes == 0) return {};
  std::string time;
  if (ceilings && ceilings->link) {
    time = fmt::format(", at the measured rates {:.3f} s out and {:.3f} s back", bytes * 1e-9 / ceilings->link->to_host,
                       bytes * 1e-9 / ceilings->link->to_device);
  }
  return fmt::format("offloaded activations: {:.3f} GB to the host and back per micro-batch{}\n", bytes * 1e-9, time);
}

// Bytes of weights that a program copies from the host to the device.
double fetched_bytes(const Program& program) {
  double bytes = 0;
  for (const Instruction& each : program.instructions) {
    if (dynamic_cast<const FetchStart*>(each.op.get()) != nullptr && each.inputs[0].arena == Role::kWeight)
      bytes += each.cost.bytes;
  }
  return bytes;
}

// What weights in host memory spare the device, and what they ask of the link.
std::string weight_offload_text(const Model& model, const TrainShape& shape, const ProgramSet& programs,
                                const std::optional<Ceilings>& ceilings, const Device& device) {
  if (!shape.zero.offload_param) return {};
  TrainShape kept = shape;
  kept.zero.offload_param = false;
  const auto without = static_cast<std::ptrdiff_t>(make_programs(model, kept, device).sizes.total());
  const std::ptrdiff_t saved = without - static_cast<std::ptrdiff_t>(programs.sizes.total());
  const double bytes = fetched_bytes(programs.micro);
  std::string time;
  if (ceilings && ceilings->link)
    time = fmt::format(", at the measured rate {:.3f} s", bytes * 1e-9 / ceilings->link->to_device);
  return fmt::format("offloaded weights: {} {} of the device's memory; {:.3f} GB to the device per micro-batch{}\n",
                     saved >= 0 ? "save" : "take", human_bytes(static_cast<std::size_t>(std::abs(saved))), bytes * 1e-9,
                     time);
}

// "fp8: these stay in bf16: h.0.attn.c_attn.weight (its 100 rows are no multiple of 16), …", a line for each reason.
std::string left_by_fp8_text(const Model& model, const TrainShape& shape) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (LeftProduct& left : products_left_by_fp8(model, shape)) by_reason[left.why].push_back(std::move(left.weight));
  std::string text;
  for (const auto& [why, weights] : by_reason) {
    constexpr std::size_t kShown = 3;
    const std::vector<std::string> shown(weights.begin(),
                                         weights.begin() + std::min<std::ptrdiff_t>(kShown, std::ssize(weights)));
    text +=
        fmt::format("fp8: products with {}{} stay in bf16: {}\n", fmt::join(shown, ", "),
                    weights.size() > kShown ? fmt::format(" and {} more weights", weights.size() - kShown) : "", why);
  }
  return text;
}

}  // namespace

RunConfig for_ranks(const RunConfig& given, int ranks) {
  RunConfig config = given;
  resolve_batch(config, ranks);
  if (config.scale_lr_from) {
    config.learning_rate *= static_cast<double>(ranks) / static_cast<double>(*config.scale_lr_from);
    config.notes.push_back(fmt::format("learning_rate is {:g}: {:g} scaled by {} ranks / {} (scale_lr_from)",
                                       config.learning_rate, given.learning_rate, ranks, *config.scale_lr_from));
  }
  return config;
}

std::optional<Ceilings> known_ceilings(const RunConfig& config, const Device& device) {
  if (config.ceilings_file == "none") return std::nullopt;
  if (config.ceilings_file) return read_ceilings(*config.ceilings_file);
  const std::filesystem::path file = ceilings_path(device.card());
  std::error_code unreadable;
  if (file.empty() || !std::filesystem::is_regular_file(file, unreadable)) return std::nullopt;
  try {
    return read_ceilings(file);
  } catch (const Error& error) {  // nobody asked for it
    log_warning("no share of the ceiling in the logs: {}; measure again with: convoy bench --device {}",
                error.message(), config.device);
    return std::nullopt;
  }
}

void fit_recompute(const RunConfig& config, const ModelSource& source, const std::optional<Ceilings>& ceilings,
                   Device& device, Communicator& communicator, TrainShape& shape) {
  if (shape.recompute != RecomputeMode::kFit) return;
  shape.rates = machine_rates(ceilings, shape.dtype, shape.has_own_memory);
  communicator.broadcast(std::as_writable_bytes(std::span(&shape.rates, 1)), 0);
  const std::int64_t mine =
      fitting_recompute_steps(*source.model, shape, device, memory_limit(config, shape.zero.world, device),
                              beside_the_arenas(config, source, device));
  for (int rank = 0; rank < communicator.size(); ++rank) {
    std::int64_t theirs = mine;
    communicator.broadcast(std::as_writable_bytes(std::span(&theirs, 1)), rank);
    shape.recompute_steps = std::max(shape.recompute_steps, theirs);
  }
}

void report_plan(const ModelSource& source, const TrainShape& shape, const RunConfig& config, Device& device,
                 bool first) {
  const ProgramSet programs = make_programs(*source.model, shape, device);
  const MemoryReport report = full_report(config, source, programs, shape, device);
  require_fit(*source.model, shape, device, report, memory_limit(config, shape.zero.world, device),
              beside_the_arenas(config, source, device));
  const std::string left = shape.fp8 ? left_by_fp8_text(*source.model, shape) : "";
  if (!first) return;
  log_info("{}: {}, {} of memory planned{}{}\n{}", source.model->family(), parameters_text(*source.model),
           human_bytes(report.total),
           report.host_total > 0 ? fmt::format(" and {} of the host's", human_bytes(report.host_total)) : "",
           shape.zero.world > 1 ? " on this rank" : "", print(report));
  if (shape.recompute == RecomputeMode::kFit) log_info("recompute {}", recompute_text(shape, programs));
  if (!left.empty()) log_info("{}", std::string_view(left).substr(0, left.size() - 1));
  if (config.print_program) fmt::print("{}", listing(programs));
}

std::string plan_run(const RunConfig& settings, Device& device) {
  const int ranks = static_cast<int>(settings.num_processes.value_or(1));
  const RunConfig config = for_ranks(settings, ranks);
  apply_process_settings(config, 0, 1);
  const ModelSource source = open_model(config);
  TrainShape shape = train_shape(config, source, evaluates(config), 0, ranks);
  const std::optional<SpeechBuckets> buckets = plan_buckets(config, source, shape);
  const auto shape_of = [&](int rank) {
    TrainShape made = train_shape(config, source, evaluates(config), rank, ranks);
    set_buckets(buckets, made);
    return made;
  };
  set_buckets(buckets, shape);
  const MemoryLimit limit = memory_limit(config, ranks, device);
  if (shape.recompute == RecomputeMode::kFit) {
    const MachineRates rates = machine_rates(known_ceilings(config, device), shape.dtype, shape.has_own_memory);
    for (int r = 0; r < ranks; ++r) {
      TrainShape theirs = shape_of(r);
      theirs.rates = shape.rates = rates;
      theirs.recompute_steps = shape.recompute_steps;
      shape.recompute_steps =
          fitting_recompute_steps(*source.model, theirs, device, limit, beside_the_arenas(config, source, device));
    }
  }
  const ProgramSet programs = make_programs(*source.model, shape, device);
  const MemoryReport report = full_report(config, source, programs, shape, device);
  const double tokens = static_cast<double>(shape.tokens());
  std::string text = fmt::format(
      "{}: {}, {}, micro-batch {} × {} tokens, accumulation {}, recompute {}{}\nrank 0\n{}", source.model->family(),
      parameters_text(*source.model), shape.fp8 ? "bf16 with fp8 products" : name_of(shape.dtype), shape.rows,
      shape.seq, shape.accumulation, recompute_text(shape, programs),
      ranks > 1 ? fmt::format(", {} ranks, ZeRO stage {}", ranks, shape.zero.stage) : "", print(report));
  if (shape.fp8) text += left_by_fp8_text(*source.model, shape);
  std::size_t most = report.total;
  std::size_t most_host = report.host_total;
  for (int r = 1; r < ranks; ++r) {
    TrainShape theirs_shape = shape_of(r);
    theirs_shape.recompute_steps = shape.recompute_steps;
    theirs_shape.rates = shape.rates;
    const ProgramSet others = make_programs(*source.model, theirs_shape, device);
    const MemoryReport theirs = full_report(config, source, others, theirs_shape, device);
    text += fmt::format("rank {}\n{}", r, print(theirs));
    most = std::max(most, theirs.total);
    most_host = std::max(most_host, theirs.host_total);
  }
  text += fmt::format("arithmetic: {:.3f} GFLOP per token, {:.1f} GFLOP per micro-batch\n",
                      programs.micro.cost().flops / tokens * 1e-9, programs.micro.cost().flops * 1e-9);
  const std::optional<Ceilings> ceilings = known_ceilings(config, device);
  text += offload_text(programs, ceilings) + weight_offload_text(*source.model, shape, programs, ceilings, device) +
          buckets_text(shape, programs);
  const std::vector<Alternative> others =
      alternatives(*source.model, shape, device, beside_the_arenas(config, source, device));
  if (!others.empty()) text += "less memory with:\n" + print(others, report.total);
  if (config.print_program) text += listing(programs);
  text += fmt::format("{} are available{}{}: the run {}\n", human_bytes(limit.device),
                      most_host > 0 ? fmt::format(", {} of the host's", human_bytes(limit.host)) : "",
                      ranks > 1 ? " for each rank" : "",
                      most <= limit.device && most_host <= limit.host ? "fits" : "does not fit");
  return text;
}

}  // namespace convoy
