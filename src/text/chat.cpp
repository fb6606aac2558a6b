#include "text/chat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/suggest.h"

namespace convoy {
namespace {

constexpr std::array<std::pair<ChatFormat, std::string_view>, 7> kNames{{{ChatFormat::kGlm4, "glm4"},
                                                                         {ChatFormat::kChatMl, "chatml"},
                                                                         {ChatFormat::kQwen2, "qwen2"},
                                                                         {ChatFormat::kQwen25, "qwen2.5"},
                                                                         {ChatFormat::kQwen3, "qwen3"},
                                                                         {ChatFormat::kLlama3, "llama3"},
                                                                         {ChatFormat::kLlama31, "llama3.1"}}};

bool is_llama(ChatFormat format) {
  return format == ChatFormat::kLlama3 || format == ChatFormat::kLlama31;
}

std::vector<std::string> roles_of(ChatFormat format) {
  if (format == ChatFormat::kGlm4) return {"system", "user", "assistant", "observation"};
  if (is_llama(format)) return {"system", "user", "assistant", "ipython"};
  return {"system", "user", "assistant", "tool"};
}

// The tokens that a format cannot do without.
std::vector<std::string> tokens_of(ChatFormat format) {
  if (format == ChatFormat::kGlm4)
    return {"[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"};
  if (is_llama(format)) return {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  return {"<|im_start|>", "<|im_end|>"};
}

std::string_view default_system(ChatFormat format) {
  if (format == ChatFormat::kQwen2) return "You are a helpful assistant.";
  if (format == ChatFormat::kQwen25) return "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
  return "";
}

// What Jinja's trim takes off that occurs in practice: ASCII white space.
std::string_view trimmed(std::string_view text, std::string_view blanks = " \t\n\r\f\v") {
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

}  // namespace

std::string_view name_of(ChatFormat format) {
  for (const auto& [value, name] : kNames) {
    if (value == format) return name;
  }
  throw internal_error("a chat format without a name");
}

ChatFormat parse_chat_format(std::string_view name) {
  std::vector<std::string> known;
  for (const auto& [value, text] : kNames) {
    if (text == name) return value;
    known.emplace_back(text);
  }
  throw usage_error(fmt::format("unknown chat format '{}'{}", name, did_you_mean(name, known)))
      .mend(fmt::format("use one of {}", fmt::join(known, ", ")));
}

void EncodedSample::append(TokenId id, bool train) {
  ids.push_back(id);
  trained.push_back(train ? 1 : 0);
}

void EncodedSample::append(const std::vector<TokenId>& more, bool train) {
  ids.insert(ids.end(), more.begin(), more.end());
  trained.resize(ids.size(), train ? 1 : 0);
}

ChatEncoder::ChatEncoder(ChatFormat format, const Tokenizer& tokenizer, ChatOptions options)
    : format_(format), tokenizer_(tokenizer), options_(std::move(options)) {
  for (const std::string& name : tokens_of(format)) token(name);
}

TokenId ChatEncoder::token(std::string_view name) const {
  const std::optional<TokenId> id = tokenizer_.token_to_id(name);
  if (!id) {
    throw usage_error(
        fmt::format("the tokenizer has no token '{}', which chat format {} needs", name, name_of(format_)))
        .mend("choose the chat format that the model was trained with, or its tokenizer");
  }
  return *id;
}

std::vector<TokenId> ChatEncoder::text(std::string_view text) const {
  if (text.empty()) return {};
  return tokenizer_.encode(text, {.add_special_tokens = false, .parse_special = options_.parse_special});
}

std::string ChatEncoder::canonical_role(const std::string& role) const {
  const std::vector<std::string> known = roles_of(format_);
  if (std::find(known.begin(), known.end(), role) != known.end()) return role;
  // A tool's answer has another name in each family.
  if (role == "tool" || role == "observation" || role == "ipython" || role == "function") return known.back();
  throw data_error(fmt::format("unknown role '{}'{}", role, did_you_mean(role, known)))
      .mend(fmt::format("chat format {} knows the roles {}", name_of(format_), fmt::join(known, ", ")));
}

std::vector<ChatEncoder::Turn> ChatEncoder::turns(const std::vector<ChatMessage>& messages, bool for_training) const {
  if (messages.empty()) throw data_error("a conversation without messages");
  std::vector<Turn> result;
  for (const ChatMessage& message : messages) {
    if (!message.more.empty()) {
      throw data_error(
          fmt::format("chat format {} does not show the message's fields {}", name_of(format_), message.more))
          .mend("take a model folder with a chat template (chat_format: template), or write them into the content");
    }
    Turn turn{.role = canonical_role(message.role), .metadata = message.metadata, .content = message.content};
    // GLM-4 has no turn for a message without content.
    if (format_ == ChatFormat::kGlm4 && turn.content.empty()) continue;
    turn.trained = for_training && message.trained && turn.role == "assistant";
    if (turn.role == "tool") {
      // Answers of several tools to one message share a turn.
      if (!result.empty() && result.back().role == "tool" && format_ != ChatFormat::kChatMl) {
        result.back().answers.push_back(turn.content);
        continue;
      }
      turn.answers = {turn.content};
    }
    result.push_back(std::move(turn));
  }
  if (!for_training) return result;
  bool later = false;
  for (auto turn = result.rbegin(); turn != result.rend(); ++turn) {
    if (options_.last_turn_only && later) turn->trained = false;
    later = later || turn->trained;
  }
  if (!later) {
    throw data_error("a conversation without an assistant message to train on")
        .mend("give it a message of role assistant with content, or leave the conversation out");
  }
  return result;
}

std::vector<ChatEncoder::Turn> ChatEncoder::with_system(std::vector<Turn> turns) const {
  const bool has_system = !turns.empty() && turns.front().role == "system";
  if (format_ == ChatFormat::kLlama31) {
    std::string system = options_.default_system.value_or("");
    if (has_system) system = turns.front().content;
    if (has_system) turns.erase(turns.begin());
    Turn dated{.role = "system"};
    dated.content =
        fmt::format("Cutting Knowledge Date: December 2023\nToday Date: {}\n\n{}", options_.today, trimmed(system));
    turns.insert(turns.begin(), std::move(dated));
    return turns;
  }
  const std::string system = options_.default_system.value_or(std::string(default_system(format_)));
  if (!has_system && !system.empty()) {
    Turn turn{.role = "system"};
    turn.content = system;
    turns.insert(turns.begin(), std::move(turn));
  }
  return turns;
}

// Qwen3: splits off the reasoning, keeps it only after the last user message, and gives the last turn a (perhaps empty)
// think block.
void ChatEncoder::think(std::vector<Turn>& turns) const {
  std::size_t last_user = 0;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (turns[i].role == "user") last_user = i;
  }
  for (std::size_t i = 0; i < turns.size(); ++i) {
    Turn& turn = turns[i];
    if (turn.role != "assistant") continue;
    constexpr std::string_view kOpen = "<think>";
    constexpr std::string_view kClose = "</think>";
    if (const std::size_t close = turn.content.rfind(kClose); close != std::string::npos) {
      std::string_view before = std::string_view(turn.content).substr(0, turn.content.find(kClose));
      if (const std::size_t open = before.rfind(kOpen); open != std::string_view::npos)
        before = before.substr(open + kOpen.size());
      turn.reasoning = trimmed(before, "\n");
      turn.content = turn.content.substr(close + kClose.size());
      turn.content.erase(0, std::min(turn.content.find_first_not_of('\n'), turn.content.size()));
    }
    turn.thinks = i > last_user && (i + 1 == turns.size() || !turn.reasoning.empty());
  }
}

// A token of the format's own that older vocabularies spell as text.
void ChatEncoder::marker(std::string_view name, bool train, EncodedSample& out) const {
  if (const std::optional<TokenId> id = tokenizer_.token_to_id(name)) {
    out.append(*id, train);
  } else {
    out.append(text(name), train);
  }
}

void ChatEncoder::glm_turn(const Turn& turn, bool& trained_before, EncodedSample& out) const {
  out.append(token(fmt::format("<|{}|>", turn.role)), trained_before);
  out.append(text(turn.metadata + "\n"), turn.trained);
  out.append(text(turn.content), turn.trained);
  trained_before = turn.trained;
}

void ChatEncoder::chatml_turn(const Turn& turn, EncodedSample& out) const {
  out.append(token("<|im_start|>"), false);
  if (turn.role == "assistant") {
    out.append(text("assistant\n"), false);
    if (turn.thinks) {
      marker("<think>", turn.trained, out);
      out.append(text(fmt::format("\n{}\n", turn.reasoning)), turn.trained);
      marker("</think>", turn.trained, out);
      out.append(text("\n\n" + turn.content), turn.trained);
    } else {
      out.append(text(turn.content), turn.trained);
    }
  } else if (turn.role == "tool" && format_ != ChatFormat::kChatMl) {
    // Qwen has no turn for tools: their answers come from the user.
    out.append(text("user"), false);
    for (const std::string& answer : turn.answers) {
      out.append(text("\n"), false);
      marker("<tool_response>", false, out);
      out.append(text(fmt::format("\n{}\n", answer)), false);
      marker("</tool_response>", false, out);
    }
  } else {
    out.append(text(fmt::format("{}\n{}", turn.role, turn.content)), false);
  }
  out.append(token("<|im_end|>"), turn.trained);
  out.append(text("\n"), false);
}

void ChatEncoder::llama_turn(const Turn& turn, EncodedSample& out) const {
  out.append(token("<|start_header_id|>"), false);
  out.append(text(turn.role), false);
  out.append(token("<|end_header_id|>"), false);
  if (turn.role == "assistant") {
    out.append(text("\n\n"), false);
    out.append(text(trimmed(turn.content)), turn.trained);
  } else {
    out.append(text(fmt::format("\n\n{}", turn.role == "system" && format_ == ChatFormat::kLlama31
                                              ? std::string_view(turn.content)
                                              : trimmed(turn.content))),
               false);
  }
  out.append(token("<|eot_id|>"), turn.trained);
}

EncodedSample ChatEncoder::render(const std::vector<Turn>& turns, bool generation) const {
  EncodedSample out;
  if (format_ == ChatFormat::kGlm4) {
    out.append(token("[gMASK]"), false);
    out.append(token("<sop>"), false);
    bool trained_before = false;
    for (const Turn& turn : turns) glm_turn(turn, trained_before, out);
    if (generation) {
      out.append(token("<|assistant|>"), false);
    } else {
      out.append(token("<|endoftext|>"), trained_before);
    }
    return out;
  }
  if (is_llama(format_)) {
    out.append(token("<|begin_of_text|>"), false);
    for (const Turn& turn : turns) llama_turn(turn, out);
    if (!generation) return out;
    out.append(token("<|start_header_id|>"), false);
    out.append(text("assistant"), false);
    out.append(token("<|end_header_id|>"), false);
    out.append(text("\n\n"), false);
    return out;
  }
  for (const Turn& turn : turns) chatml_turn(turn, out);
  if (!generation) return out;
  out.append(token("<|im_start|>"), false);
  out.append(text("assistant\n"), false);
  return out;
}

EncodedSample ChatEncoder::encode(const std::vector<ChatMessage>& messages) const {
  std::vector<Turn> all = with_system(turns(messages, true));
  if (format_ == ChatFormat::kQwen3) think(all);
  return render(all, false);
}

std::vector<TokenId> ChatEncoder::prompt(const std::vector<ChatMessage>& messages) const {
  std::vector<Turn> all = with_system(turns(messages, false));
  if (format_ == ChatFormat::kQwen3) {
    think(all);
    // A prompt ends in a new turn, so none of these is the last.
    for (Turn& turn : all) turn.thinks = turn.thinks && !turn.reasoning.empty();
  }
  return render(all, true).ids;
}

}  // namespace convoy
