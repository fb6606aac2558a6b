// convoy generate MODEL --prompt TEXT
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/parallel.h"
#include "checkpoint/model_folder.h"
#include "cli/commands.h"
#include "devices/make_device.h"
#include "text/chat.h"
#include "text/chat_template.h"
#include "text/stop_text.h"
#include "text/tokenizer.h"
#include "train/adapter_io.h"
#include "train/generator.h"
#include "train/weights_io.h"

namespace convoy {
namespace {

constexpr std::int64_t kBatch = 8;

struct Arguments {
  std::string model, adapter, prompts_file, tokenizer, dtype, chat, system, device = "cpu", output;
  std::vector<std::string> prompts, stop;
  std::int64_t max_length = 0, batch = 0;
  GenerationOptions generation;
  bool greedy = false, ignore_eos = false, echo = true, cache = true, stats = false;
  int threads = 0;
  double rope_theta = 0;
};

// What is asked for: a text to continue, or a conversation.
struct Request {
  std::string prompt;
  std::vector<ChatMessage> messages;  // where it is not empty, instead of the prompt
  std::string tools;                  // of the conversation: a JSON list, or empty
  std::vector<TokenId> ids;
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

Request parse_request(const std::string& line, const std::string& where) {
  Request request;
  const Json json = parse_json(line, where);
  try {
    if (json.is_string()) {
      request.prompt = json.get<std::string>();
    } else if (json.contains("messages")) {
      for (const Json& message : json.at("messages"))
        request.messages.push_back(
            {message.at("role").get<std::string>(), message.at("content").get<std::string>(), "", true});
      if (request.messages.empty()) throw data_error("a conversation without messages").at(where);
      if (json.contains("tools") && !json.at("tools").is_null()) request.tools = json.at("tools").dump();
    } else {
      request.prompt = json.at(json.contains("prompt") ? "prompt" : "text").get<std::string>();
    }
  } catch (const nlohmann::json::exception&) {
    throw data_error("no prompt")
        .at(where)
        .mend(R"(a line is {"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]})");
  }
  return request;
}

std::vector<Request> read_requests(const Arguments& arguments) {
  std::vector<Request> requests;
  for (const std::string& prompt : arguments.prompts) requests.push_back({prompt, {}, "", {}});
  if (!arguments.prompts_file.empty()) {
    std::ifstream in(arguments.prompts_file);
    if (!in) throw storage_error("cannot be read").at(arguments.prompts_file);
    const bool json = arguments.prompts_file.ends_with(".jsonl") || arguments.prompts_file.ends_with(".json");
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
      if (line.empty()) continue;
      requests.push_back(json ? parse_request(line, fmt::format("{}:{}", arguments.prompts_file, number))
                              : Request{line, {}, "", {}});
    }
    if (requests.empty()) throw data_error("no prompt in the file").at(arguments.prompts_file);
  }
  if (requests.empty()) requests.emplace_back();
  return requests;
}

// The chat format that was asked for, or the folder's template.
class Chat {
 public:
  Chat(const std::string& format, const std::filesystem::path& folder, const Tokenizer& tokenizer) {
    if (format != "template") {
      built_in_.emplace(parse_chat_format(format), tokenizer);
      return;
    }
    std::optional<ChatTemplate> found = ChatTemplate::find(folder);
    if (!found) {
      throw usage_error("the model folder has no chat template")
          .at(folder.string())
          .mend("add its chat_template.jinja, or name the format: --chat glm4, chatml, qwen2.5 or llama3");
    }
    found->set_time(std::time(nullptr));
    template_.emplace(std::move(*found), tokenizer);
  }
  std::vector<TokenId> prompt(const Request& request) const {
    if (template_) return template_->prompt(request.messages, request.tools);
    if (!request.tools.empty())
      throw data_error("only a chat template can show tools").mend("give --chat template, and a folder that has one");
    return built_in_->prompt(request.messages);
  }

 private:
  std::optional<ChatEncoder> built_in_;
  std::optional<TemplateEncoder> template_;
};

void encode(std::vector<Request>& requests, const Arguments& arguments, const std::filesystem::path& folder,
            const Tokenizer& tokenizer) {
  std::optional<Chat> chat;
  if (!arguments.chat.empty()) chat.emplace(arguments.chat, folder, tokenizer);
  for (Request& request : requests) {
    if (!request.messages.empty() && !chat)
      throw usage_error("a conversation needs a chat format").mend("give --chat template, or the name of a format");
    if (!chat) {
      tokenizer.encode(request.prompt, {}, request.ids);
      if (!request.ids.empty()) continue;
      const auto start = tokenizer.bos_id() ? tokenizer.bos_id() : tokenizer.eos_id();
      if (!start) throw usage_error("the prompt is empty and the tokenizer has no begin token").mend("give --prompt");
      request.ids.push_back(*start);
      continue;
    }
    Request asked = request;
    if (asked.messages.empty()) asked.messages.push_back({"user", request.prompt, "", true});
    if (!arguments.system.empty() && asked.messages.front().role != "system")
      asked.messages.insert(asked.messages.begin(), {"system", arguments.system, "", true});
    request.ids = chat->prompt(asked);
  }
}

std::int64_t longest(const Arguments& arguments, const Model& model, const std::vector<Request>& requests) {
  if (arguments.max_length > 0) return arguments.max_length;
  std::int64_t wanted = 0;
  for (const Request& request : requests) wanted = std::max(wanted, static_cast<std::int64_t>(request.ids.size()));
  wanted += arguments.generation.max_new_tokens;
  return model.positions_are_learned() ? std::min(wanted, model.max_positions()) : wanted;
}

// The texts as they come: one is streamed, several are printed whole and in order.
class Answers {
 public:
  Answers(const std::vector<Request>& requests, const Arguments& arguments, const Tokenizer& tokenizer)
      : requests_(requests), streams_(requests.size() == 1 && arguments.output.empty()) {
    for (std::size_t i = 0; i < requests.size(); ++i)
      texts_.push_back({StreamingDecoder(tokenizer, true), StopText(arguments.stop), {}});
    if (arguments.output.empty()) return;
    file_.open(arguments.output);
    if (!file_) throw storage_error("cannot be written").at(arguments.output);
  }
  // False where a stop string has come.
  bool push(std::size_t text, std::int32_t token) {
    Text& now = texts_[text];
    show(now, now.stop.push(now.decoder.push(token)));
    return !now.stop.stopped();
  }
  void finish(std::span<const std::vector<std::int32_t>> made) {
    for (std::size_t i = 0; i < made.size(); ++i) {
      Text& now = texts_[i];
      show(now, now.stop.push(now.decoder.finish()));
      if (!now.stop.stopped()) show(now, now.stop.finish());
      if (streams_) {
        fmt::print("\n");
        continue;
      }
      Json record;
      if (requests_[i].messages.empty()) {
        record["prompt"] = requests_[i].prompt;
      } else {
        for (const ChatMessage& message : requests_[i].messages)
          record["messages"].push_back({{"role", message.role}, {"content", message.content}});
      }
      record["completion"] = now.shown;
      record["tokens"] = made[i].size();
      const std::string line = record.dump() + "\n";
      file_.is_open() ? void(file_ << line) : fmt::print("{}", line);
    }
    if (file_.is_open() && !file_.flush()) throw storage_error("cannot be written");
  }

 private:
  struct Text {
    StreamingDecoder decoder;
    StopText stop;
    std::string shown;
  };
  void show(Text& text, const std::string& piece) const {
    text.shown += piece;
    if (!streams_) return;
    fmt::print("{}", piece);
    std::fflush(stdout);
  }

  const std::vector<Request>& requests_;
  bool streams_;
  std::vector<Text> texts_;
  std::ofstream file_;
};

DType dtype_of(const Arguments& arguments, const Model& model, const ModelFolder& folder) {
  const DType stored = stored_dtype(match_folder(model, folder));
  if (arguments.dtype.empty()) return stored;
  const auto named = parse_dtype(arguments.dtype);
  if (!named || !is_floating(*named))
    throw usage_error(fmt::format("'{}' is no dtype", arguments.dtype)).mend("take f32, bf16 or f16");
  return *named;
}

int generate(Arguments arguments) {
  set_threads(arguments.threads);
  const ModelAndAdapter folders = resolve_adapter(arguments.model, arguments.adapter);
  arguments.model = folders.model;
  arguments.adapter = folders.adapter;
  const ModelFolder folder(arguments.model);
  auto model = make_model(folder.config(), (folder.folder() / "config.json").string(), {arguments.rope_theta, false});
  if (!arguments.adapter.empty())
    model = add_lora(std::move(model), read_adapter_config(arguments.adapter), arguments.adapter);
  const auto tokenizer =
      load_tokenizer(arguments.tokenizer.empty() ? folder.folder() : std::filesystem::path(arguments.tokenizer));
  arguments.generation.sampling.vocab = tokenizer->vocab_size();
  const DType dtype = dtype_of(arguments, *model, folder);
  std::vector<Request> requests = read_requests(arguments);
  const std::filesystem::path words =
      arguments.tokenizer.empty() ? folder.folder() : std::filesystem::path(arguments.tokenizer);
  encode(requests, arguments, words, *tokenizer);
  const std::unique_ptr<Device> device = make_device(arguments.device);
  const auto count = static_cast<std::int64_t>(requests.size());
  Generator generator(*device, *model, dtype, longest(arguments, *model, requests),
                      std::min(count, arguments.batch > 0 ? arguments.batch : kBatch), arguments.cache);
  load_weights(generator.store(), folder);
  if (!arguments.adapter.empty()) load_adapter(generator.store(), arguments.adapter);
  if (!arguments.ignore_eos) arguments.generation.stop_tokens = stop_tokens(folder, *tokenizer);
  if (count == 1 && arguments.echo && arguments.chat.empty() && arguments.output.empty())
    fmt::print("{}", requests.front().prompt);
  Answers answers(requests, arguments, *tokenizer);
  std::vector<std::vector<std::int32_t>> prompts;
  for (const Request& request : requests) prompts.push_back(request.ids);
  const auto begin = std::chrono::steady_clock::now();
  auto first = begin;
  std::int64_t tokens = 0;
  arguments.generation.on_token = [&](std::size_t text, std::int32_t token) {
    if (tokens++ == 0) first = std::chrono::steady_clock::now();
    return answers.push(text, token);
  };
  const auto made = generator.generate(prompts, arguments.generation);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  answers.finish(made);
  if (arguments.stats) {
    fmt::print(
        stderr,
        "{} tokens in {:.3f} s, {:.1f} tokens/s; the first after {:.3f} s; memory {}, {} of it kept keys and values\n",
        tokens, seconds.count(), static_cast<double>(tokens) / seconds.count(),
        std::chrono::duration<double>(first - begin).count(), human_bytes(generator.bytes()),
        human_bytes(generator.cache_bytes()));
  }
  return 0;
}

}  // namespace

int generate_command(const Words& words) {
  Arguments arguments;
  CLI::App app("continue a text with a model", "generate");
  app.add_option("model", arguments.model, "a model folder, or that of a LoRA adapter")->required();
  app.add_option("--adapter", arguments.adapter, "folder of a LoRA adapter of that model");
  app.add_option("-p,--prompt", arguments.prompts,
                 "the text to continue, or the user's message with --chat; may be given several times")
      ->allow_extra_args(false);
  app.add_option("--prompts_file,--prompts-file", arguments.prompts_file,
                 "a prompt per line; in a .jsonl file {\"prompt\": …} or {\"messages\": […]}");
  app.add_option("-o,--output", arguments.output, "write the texts into this file, as JSON lines");
  app.add_option("--batch_size,--batch-size", arguments.batch, "texts that are generated at once (default: up to 8)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--chat", arguments.chat,
                 "format the prompt as a chat: template (the model folder's), glm4, chatml, qwen2.5 or llama3");
  app.add_option("--system", arguments.system, "the system message, with --chat");
  app.add_option("--stop", arguments.stop, "end the text before this string; may be given several times")
      ->allow_extra_args(false);
  app.add_option("-n,--max_new_tokens,--max-new-tokens", arguments.generation.max_new_tokens,
                 "stop after so many tokens")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--max_length,--max-length", arguments.max_length,
                 "room for prompt and answer, in tokens (default: what they need)");
  app.add_option("--temperature", arguments.generation.sampling.temperature, "0 = always the most likely token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1000.0));
  app.add_option("--top_k,--top-k", arguments.generation.sampling.top_k, "only the k most likely tokens (0 = all)")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--top_p,--top-p", arguments.generation.sampling.top_p,
                 "only the likeliest tokens with this much probability in all")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--repetition_penalty,--repetition-penalty", arguments.generation.sampling.repetition_penalty,
                 "above 1: make tokens already there less likely")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 100.0));
  app.add_option("--seed", arguments.generation.sampling.seed, "of the random draws")->capture_default_str();
  app.add_flag("--greedy", arguments.greedy, "the same as --temperature 0");
  app.add_flag("--ignore_eos,--ignore-eos", arguments.ignore_eos, "do not stop at the end token");
  app.add_flag(
      "--cache,!--no-cache", arguments.cache,
      "keep keys and values of earlier tokens (on unless --no-cache, which computes them anew for every token)");
  app.add_flag("--stats", arguments.stats, "say on stderr how fast it was");
  app.add_flag("--echo,!--no-echo", arguments.echo, "print the prompt too (on unless --no-echo)");
  app.add_option("--tokenizer", arguments.tokenizer, "folder or file of the tokenizer (default: the model folder)");
  app.add_option("--dtype", arguments.dtype, "f32, bf16 or f16 (default: as stored)");
  app.add_option("--rope_theta,--rope-theta", arguments.rope_theta, "overrides the rotary base of config.json");
  app.add_option("--device", arguments.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--threads", arguments.threads, "threads (0 = all cores)");
  if (!parse_words(app, words)) return 0;
  if (arguments.greedy) arguments.generation.sampling.temperature = 0;
  return generate(arguments);
}

}  // namespace convoy
