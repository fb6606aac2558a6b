#include "train/run_evaluation.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "plan/memory_report.h"
#include "train/adapter_io.h"
#include "train/evaluation.h"
#include "train/keep_alive.h"
#include "train/rank_agreement.h"
#include "train/run_data.h"
#include "train/run_setup.h"
#include "train/weights_io.h"

namespace convoy {
namespace {

BytesBeside beside_the_arenas() {
  return [](const TrainShape& shape, const ProgramSet&) -> std::size_t {
    return shape.has_own_memory ? 0 : communication_memory(shape.zero.world);
  };
}

MemoryReport full_report(const ProgramSet& programs, const TrainShape& shape) {
  MemoryReport report = memory_report(programs.sizes, programs.activation_lower_bound);
  std::erase_if(report.lines, [](const MemoryLine& line) { return line.bytes == 0; });
  add_line(report, "communication", communication_memory(shape.zero.world), shape.has_own_memory);
  return report;
}

void require_memory(const ModelSource& source, const TrainShape& shape, const RunConfig& config, Device& device) {
  const ProgramSet programs = make_programs(*source.model, shape, device);
  const MemoryReport report = full_report(programs, shape);
  require_fit(*source.model, shape, device, report, memory_limit(config, shape.zero.world, device),
              beside_the_arenas());
  log_info("{}: {} parameters, {} of memory planned{}{}\n{}", source.model->family(), source.model->parameter_count(),
           human_bytes(report.total),
           report.host_total > 0 ? fmt::format(" and {} of the host's", human_bytes(report.host_total)) : "",
           shape.zero.world > 1 ? " on this rank" : "", print(report));
}

// What a run trained is there already; an adapter's folder stands for its base model with it.
RunConfig for_evaluation(const RunConfig& settings) {
  RunConfig config = settings;
  config.from_scratch = false;
  config.lora_rank.reset();
  if (!config.model) return config;
  const ModelAndAdapter folders = resolve_adapter(*config.model, config.adapter.value_or(""));
  config.model = folders.model;
  if (!folders.adapter.empty()) config.adapter = folders.adapter;
  return config;
}

// What the figures depend on, and the figures.
Json results(const RunConfig& config, const EvaluateOptions& options, const ModelSource& source,
             const TrainShape& shape, const EvaluationSums& sums) {
  Json json;
  json["model"] = source.folder->folder().string();
  if (config.adapter) json["adapter"] = *config.adapter;
  json["files"] = config.validation_files.empty() ? config.train_files : config.validation_files;
  if (config.validation_files.empty()) json["validation_split"] = config.validation_split;
  json["family"] = source.model->family();
  json["dtype"] = name_of(shape.dtype);
  json["seq_length"] = shape.seq;
  json["targets"] = options.all_targets ? "all" : "trained";
  json["eval_samples"] = sums.samples;
  json["eval_tokens"] = sums.tokens;
  json["eval_targets"] = static_cast<std::int64_t>(sums.totals.targets);
  json["eval_loss"] = sums.loss();
  if (source.model->task_head() == nullptr) json["eval_perplexity"] = std::exp(sums.loss());
  json["eval_accuracy"] = sums.accuracy();
  if (source.model->task_head() != nullptr) return json;
  json["eval_bytes"] = sums.bytes;
  json["eval_words"] = sums.words;
  const double nats = sums.totals.loss_sum;
  if (sums.bytes > 0) json["eval_bits_per_byte"] = nats / std::numbers::ln2 / static_cast<double>(sums.bytes);
  if (sums.bytes > 0) json["eval_byte_perplexity"] = std::exp(nats / static_cast<double>(sums.bytes));
  if (sums.words > 0) json["eval_word_perplexity"] = std::exp(nats / static_cast<double>(sums.words));
  return json;
}

void print_results(const Json& json, double seconds, int ranks, const EvaluationSums& sums) {
  const auto real = [&](const char* name) { return json.value(name, 0.0); };
  const bool task = !json.contains("eval_perplexity");
  std::string text = fmt::format(
      "{} samples, {} tokens, {} {}\n"
      "loss             {:.6f} nats per {}\n",
      sums.samples, sums.tokens, static_cast<std::int64_t>(sums.totals.targets), task ? "decisions" : "targets",
      real("eval_loss"), task ? "decision" : "token");
  if (!task) text += fmt::format("perplexity       {:.4f}\n", real("eval_perplexity"));
  text += fmt::format("accuracy         {:.2f}% of {}\n", 100 * real("eval_accuracy"), task ? "decisions" : "tokens");
  if (json.contains("eval_bits_per_byte"))
    text += fmt::format("bits per byte    {:.4f} ({} bytes)\n", real("eval_bits_per_byte"), sums.bytes);
  if (json.contains("eval_word_perplexity"))
    text += fmt::format("word perplexity  {:.2f} ({} words)\n", real("eval_word_perplexity"), sums.words);
  text += fmt::format("{:.2f} s, {:.0f} tokens/s{}\n", seconds, static_cast<double>(sums.tokens) / seconds,
                      ranks > 1 ? fmt::format(" on {} ranks", ranks) : "");
  fmt::print("{}", text);
}

}  // namespace

void check_evaluation_inputs(const RunConfig& config) {
  if (!config.model) {
    throw usage_error("no model to evaluate")
        .mend("name a model folder, a checkpoint or the output folder of a run: convoy evaluate FOLDER");
  }
  if (!config.validation_files.empty()) return;
  if (!config.train_files.empty() && config.validation_split > 0) return;
  throw usage_error("no data to evaluate on")
      .mend("give --eval_files, or the --train_files and --validation_split of a run for what it held out");
}

int run_evaluation(const RunConfig& settings, const EvaluateOptions& options, Device& device,
                   const std::string& version, Communicator& communicator) {
  const int rank = communicator.rank();
  const int ranks = communicator.size();
  RunConfig config = for_evaluation(settings);
  apply_process_settings(config, rank, ranks);
  check_evaluation_inputs(config);
  std::optional<KeepAlive> keep_alive(std::in_place, communicator);
  Facts facts = shared_settings(config);
  facts.emplace_back("Convoy's version", version);
  facts.emplace_back("the targets", options.all_targets ? "all" : "trained");
  require_agreement(facts, "start every rank with the same settings and program", communicator);
  const ModelSource source = open_model(config, false);
  if (options.all_targets && source.model->task_head() != nullptr) {
    throw usage_error("--targets all is for the next token: a task's samples have one answer each")
        .mend("leave --targets out");
  }
  if (options.all_targets && source.model->audio()) {
    throw usage_error("--targets all is for text: recordings are evaluated on their transcripts")
        .mend("leave --targets out");
  }
  const TrainShape shape = evaluation_shape(config, source, rank, ranks);
  require_memory(source, shape, config, device);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(tokenizer_path(config));
  const RunData data = open_evaluation_data(config, *tokenizer, source, shape, options.all_targets, communicator);
  require_agreement(shared_inputs(source, *tokenizer, data), "give every rank the same files", communicator);

  Engine engine(device, *source.model, shape, &communicator);
  load_weights(engine.store(), *source.folder);
  if (config.adapter) load_adapter(engine.store(), *config.adapter);
  const std::unique_ptr<Loader> loader = data.validation_loader({});
  log_info("rows: {}", loader->report().text());
  communicator.barrier();
  keep_alive.reset();
  const auto begin = std::chrono::steady_clock::now();
  TargetText text(*tokenizer);
  const EvaluationSums sums = evaluate_all(engine, *loader, &communicator, &text);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (rank == 0) {
    Json json = results(config, options, source, shape, sums);
    print_results(json, seconds, ranks, sums);
    if (const std::filesystem::path file = options.output.value_or(""); !file.empty()) {
      json["eval_runtime"] = seconds;
      json["eval_samples_per_second"] = static_cast<double>(sums.samples) / seconds;
      json["eval_steps_per_second"] = static_cast<double>(sums.batches) / seconds;
      json["num_processes"] = ranks;
      json["memory_bytes"] = engine.programs().sizes.total();
      json["convoy_version"] = version;
      if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path());
      write_file_atomic(file, dump_json(json));
    }
  }
  communicator.barrier();
  if (std::isfinite(sums.loss())) return 0;
  throw numerics_error(fmt::format("the loss is {}", sums.loss()))
      .at(source.folder->folder().string())
      .mend("evaluate in --dtype f32; if it stays so, the weights are broken");
}

std::string plan_evaluation(const RunConfig& settings, Device& device) {
  RunConfig config = for_evaluation(settings);
  const int ranks = static_cast<int>(config.num_processes.value_or(1));
  apply_process_settings(config, 0, 1);
  if (!config.model) check_evaluation_inputs(config);
  const ModelSource source = open_model(config, false);
  std::string text;
  std::size_t most = 0;
  for (int r = 0; r < ranks; ++r) {
    const TrainShape shape = evaluation_shape(config, source, r, ranks);
    const ProgramSet programs = make_programs(*source.model, shape, device);
    const MemoryReport report = full_report(programs, shape);
    if (r == 0) {
      text = fmt::format("{}: {} parameters, {}, evaluation of {} × {} tokens at a time{}\n", source.model->family(),
                         source.model->parameter_count(), name_of(shape.dtype), shape.eval_rows, shape.seq,
                         ranks > 1 ? fmt::format(", {} ranks", ranks) : "");
      const double flops = programs.eval ? programs.eval->cost().flops : 0;
      text +=
          fmt::format("arithmetic: {:.3f} GFLOP per token\n", flops / static_cast<double>(shape.eval_tokens()) * 1e-9);
    }
    text += fmt::format("rank {}\n{}", r, print(report));
    most = std::max(most, report.total);
    if (r + 1 < ranks) continue;
    const std::vector<Alternative> others = alternatives(*source.model, shape, device, beside_the_arenas());
    if (!others.empty()) text += "less memory with:\n" + print(others, report.total);
  }
  const MemoryLimit limit = memory_limit(config, ranks, device);
  return text + fmt::format("{} are available{}: the evaluation {}\n", human_bytes(limit.device),
                            ranks > 1 ? " for each rank" : "", most <= limit.device ? "fits" : "does not fit");
}

}  // namespace convoy
