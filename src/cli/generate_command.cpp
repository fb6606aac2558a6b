// convoy generate MODEL --prompt TEXT
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/parallel.h"
#include "checkpoint/model_folder.h"
#include "cli/commands.h"
#include "devices/make_device.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "train/adapter_io.h"
#include "train/generator.h"
#include "train/weights_io.h"

namespace convoy {
namespace {

struct Arguments {
  std::string model, adapter, prompt, tokenizer, dtype, chat, device = "cpu";
  std::int64_t max_new_tokens = 128, max_length = 0;
  SamplingOptions sampling;
  bool greedy = false, ignore_eos = false, echo = true;
  int threads = 0;
  double rope_theta = 0;
};

// The ids that end a text: those of generation_config.json or config.json, and the tokenizer's.
std::vector<std::int32_t> stop_tokens(const ModelFolder& folder, const Tokenizer& tokenizer) {
  std::vector<std::int32_t> stops;
  const auto take = [&](const Json& config) {
    const auto place = config.find("eos_token_id");
    if (place == config.end() || place->is_null()) return;
    if (place->is_array()) {
      for (const Json& id : *place) stops.push_back(id.get<std::int32_t>());
    } else {
      stops.push_back(place->get<std::int32_t>());
    }
  };
  take(folder.config());
  const auto generation = folder.folder() / "generation_config.json";
  if (std::filesystem::exists(generation)) take(read_json(generation));
  if (const auto eos = tokenizer.eos_id()) stops.push_back(*eos);
  return stops;
}

std::int64_t longest(const Arguments& arguments, const Model& model, std::size_t prompt) {
  if (arguments.max_length > 0) return arguments.max_length;
  const auto wanted = static_cast<std::int64_t>(prompt) + arguments.max_new_tokens;
  return model.positions_are_learned() ? std::min(wanted, model.max_positions()) : wanted;
}

int generate(Arguments arguments) {
  set_threads(arguments.threads);
  if (is_adapter_folder(arguments.model)) {  // its base model is named in it
    if (arguments.adapter.empty()) arguments.adapter = arguments.model;
    arguments.model = base_of_adapter(arguments.model, "").string();
  }
  const ModelFolder folder(arguments.model);
  auto model = make_model(folder.config(), (folder.folder() / "config.json").string(), {arguments.rope_theta, false});
  if (!arguments.adapter.empty())
    model = add_lora(std::move(model), read_adapter_config(arguments.adapter), arguments.adapter);
  const auto tokenizer =
      load_tokenizer(arguments.tokenizer.empty() ? folder.folder() : std::filesystem::path(arguments.tokenizer));
  arguments.sampling.vocab = tokenizer->vocab_size();
  DType dtype = stored_dtype(match_folder(*model, folder));
  if (!arguments.dtype.empty()) {
    const auto named = parse_dtype(arguments.dtype);
    if (!named || !is_floating(*named))
      throw usage_error(fmt::format("'{}' is no dtype", arguments.dtype)).mend("take f32, bf16 or f16");
    dtype = *named;
  }
  std::vector<TokenId> ids;
  if (arguments.chat.empty()) {
    tokenizer->encode(arguments.prompt, {}, ids);
    if (ids.empty()) {
      const auto start = tokenizer->bos_id() ? tokenizer->bos_id() : tokenizer->eos_id();
      if (!start) throw usage_error("the prompt is empty and the tokenizer has no begin token").mend("give --prompt");
      ids.push_back(*start);
    }
  } else {
    ids = ChatEncoder(parse_chat_format(arguments.chat), *tokenizer).prompt({{"user", arguments.prompt, "", true}});
  }
  const std::unique_ptr<Device> device = make_device(arguments.device);
  Generator generator(*device, *model, dtype, longest(arguments, *model, ids.size()));
  load_weights(generator.store(), folder);
  if (!arguments.adapter.empty()) load_adapter(generator.store(), arguments.adapter);
  if (arguments.echo && arguments.chat.empty()) fmt::print("{}", arguments.prompt);
  StreamingDecoder decoder(*tokenizer, true);
  const auto show = [&](std::int32_t token) {
    fmt::print("{}", decoder.push(token));
    std::fflush(stdout);
  };
  generator.generate(ids, arguments.max_new_tokens,
                     arguments.ignore_eos ? std::vector<std::int32_t>{} : stop_tokens(folder, *tokenizer),
                     arguments.sampling, show);
  fmt::print("{}\n", decoder.finish());
  return 0;
}

}  // namespace

int generate_command(const Words& words) {
  Arguments arguments;
  CLI::App app("continue a text with a model", "generate");
  app.add_option("model", arguments.model, "a model folder, or that of a LoRA adapter")->required();
  app.add_option("--adapter", arguments.adapter, "folder of a LoRA adapter of that model");
  app.add_option("-p,--prompt", arguments.prompt, "the text to continue, or the user's message with --chat");
  app.add_option("--chat", arguments.chat, "format the prompt as a chat: glm4, chatml, qwen2.5 or llama3");
  app.add_option("-n,--max_new_tokens,--max-new-tokens", arguments.max_new_tokens, "stop after so many tokens")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--max_length,--max-length", arguments.max_length,
                 "room for prompt and answer, in tokens (default: what they need)");
  app.add_option("--temperature", arguments.sampling.temperature, "0 = always the most likely token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1000.0));
  app.add_option("--top_k,--top-k", arguments.sampling.top_k, "only the k most likely tokens (0 = all)")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--top_p,--top-p", arguments.sampling.top_p,
                 "only the likeliest tokens with this much probability in all")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--repetition_penalty,--repetition-penalty", arguments.sampling.repetition_penalty,
                 "above 1: make tokens already there less likely")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 100.0));
  app.add_option("--seed", arguments.sampling.seed, "of the random draws")->capture_default_str();
  app.add_flag("--greedy", arguments.greedy, "the same as --temperature 0");
  app.add_flag("--ignore_eos,--ignore-eos", arguments.ignore_eos, "do not stop at the end token");
  app.add_flag("--echo,!--no-echo", arguments.echo, "print the prompt too (on unless --no-echo)");
  app.add_option("--tokenizer", arguments.tokenizer, "folder or file of the tokenizer (default: the model folder)");
  app.add_option("--dtype", arguments.dtype, "f32, bf16 or f16 (default: as stored)");
  app.add_option("--rope_theta,--rope-theta", arguments.rope_theta, "overrides the rotary base of config.json");
  app.add_option("--device", arguments.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--threads", arguments.threads, "threads (0 = all cores)");
  if (!parse_words(app, words)) return 0;
  if (arguments.greedy) arguments.sampling.temperature = 0;
  return generate(arguments);
}

}  // namespace convoy
