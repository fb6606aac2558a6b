#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "text/unicode.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

// "…", or a list of {"name": …, "template": …} of which one is named "default".
std::optional<std::string> template_of(const Json& json) {
  const auto found = json.find("chat_template");
  if (found == json.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return std::nullopt;
  for (const Json& each : *found) {
    if (each.is_object() && each.value("name", "") == "default" && each.contains("template"))
      return each["template"].get<std::string>();
  }
  return std::nullopt;
}

// The tokens by role that templates may name.
std::vector<std::pair<std::string, std::string>> token_names(const Json& config) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    if (value.is_string()) names.emplace_back(key, value.get<std::string>());
    if (value.is_object() && value.contains("content") && value["content"].is_string())
      names.emplace_back(key, value["content"].get<std::string>());
  }
  return names;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
}

jinja::Value message_value(const ChatMessage& message) {
  jinja::Dict made;
  made.set("role", message.role);
  made.set("content", message.content);
  if (!message.metadata.empty()) made.set("metadata", message.metadata);
  if (message.more.empty()) return made;
  const jinja::Value more = jinja::from_json(parse_json(message.more, "message"));
  for (const auto& [key, value] : more.dict()->entries) made.set(key, value);
  return made;
}

}  // namespace

std::optional<ChatTemplate> ChatTemplate::find(const fs::path& folder) {
  if (!fs::is_directory(folder)) return std::nullopt;
  const fs::path config_file = folder / "tokenizer_config.json";
  const Json config = fs::exists(config_file) ? read_json(config_file) : Json::object();
  if (!config.is_object()) return std::nullopt;
  if (const fs::path file = folder / "chat_template.jinja"; fs::exists(file))
    return ChatTemplate(read_file(file), file.string(), token_names(config));
  if (const fs::path file = folder / "chat_template.json"; fs::exists(file)) {
    if (const auto source = template_of(read_json(file)))
      return ChatTemplate(*source, file.string(), token_names(config));
  }
  const auto source = template_of(config);
  if (!source) return std::nullopt;
  return ChatTemplate(*source, config_file.string() + ": chat_template", token_names(config));
}

ChatTemplate::ChatTemplate(std::string_view source, std::string name,
                           std::vector<std::pair<std::string, std::string>> tokens)
    : template_(std::make_shared<const jinja::Template>(source, std::move(name))),
      source_(source),
      tokens_(std::move(tokens)) {}

jinja::Rendered ChatTemplate::render(const std::vector<ChatMessage>& messages, const std::string& tools,
                                     bool generation) const {
  jinja::Dict variables;
  for (const auto& [name, text] : tokens_) variables.set(name, text);
  std::vector<jinja::Value> list;
  for (const ChatMessage& message : messages) list.push_back(message_value(message));
  variables.set("messages", jinja::Value::list(std::move(list)));
  variables.set("tools", tools.empty() ? jinja::Value(jinja::None{}) : jinja::from_json(parse_json(tools, "tools")));
  variables.set("documents", jinja::None{});
  variables.set("add_generation_prompt", generation);
  return template_->render(variables, now_);
}

std::uint64_t ChatTemplate::fingerprint() const {
  Hasher hasher;
  hasher.add(source_);
  for (const auto& [name, text] : tokens_)
    hasher.add(fmt::format("{}:{}={}:{} ", name.size(), name, text.size(), text));
  hasher.add(fmt::format("{}", now_));
  return hasher.value();
}

TemplateEncoder::TemplateEncoder(ChatTemplate chat, const Tokenizer& tokenizer, ChatOptions options)
    : chat_(std::move(chat)), tokenizer_(tokenizer), options_(std::move(options)) {
  for (std::int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(static_cast<TokenId>(id))) continue;
    if (auto text = tokenizer.id_to_token(static_cast<TokenId>(id)); text && !text->empty())
      special_.push_back(std::move(*text));
  }
}

// The messages with a mark (a character that none of them has) inside of every special token that their text spells: it
// survives the template, and parts the token there.
std::vector<ChatMessage> TemplateEncoder::guarded(const std::vector<ChatMessage>& messages, std::string& mark) const {
  std::vector<ChatMessage> made = messages;
  for (char32_t code = 0xFDD0; code <= 0xFDEF; ++code) {  // never characters of a text
    mark.clear();
    append_utf8(mark, code);
    if (std::none_of(messages.begin(), messages.end(), [&](const ChatMessage& m) {
          return m.content.find(mark) != std::string::npos || m.more.find(mark) != std::string::npos;
        }))
      break;
  }
  if (options_.parse_special) return made;
  for (ChatMessage& message : made) {
    for (std::string* text : {&message.content, &message.metadata, &message.more}) {
      for (const std::string& token : special_) {
        const std::size_t inside = decode_utf8(token, 0).length;
        for (std::size_t at = text->find(token); at != std::string::npos; at = text->find(token, at + inside))
          text->insert(at + std::min(inside, token.size()), mark);
      }
    }
  }
  return made;
}

std::optional<TemplateEncoder::Span> TemplateEncoder::next_special(std::string_view text, std::size_t from) const {
  std::optional<Span> best;
  for (const std::string& token : special_) {
    const std::size_t at = text.find(token, from);
    if (at == std::string_view::npos) continue;
    if (!best || at < best->begin || (at == best->begin && at + token.size() > best->end))
      best = Span{at, at + token.size()};
  }
  return best;
}

// What message `index` adds. Some templates show an earlier message shorter than the last one (without its reasoning):
// of the text that it adds as the last one, the longest end that the whole goes on with counts.
TemplateEncoder::Span TemplateEncoder::span_of(const std::vector<ChatMessage>& messages, std::size_t index,
                                               const std::string& tools, const std::string& whole) const {
  const auto upto = [&](std::size_t count) {
    return std::vector<ChatMessage>(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count));
  };
  const std::string with = chat_.render(upto(index + 1), tools, false).text;
  std::string before;
  for (const bool generation : {true, false}) {
    before = index == 0 && !generation ? "" : chat_.render(upto(index), tools, generation).text;
    if (with.starts_with(before) && whole.starts_with(before)) break;
    if (!generation) {
      throw data_error(
          fmt::format("message {}: the chat template shows the messages before it in another way than in the "
                      "whole conversation, so the assistant's part cannot be told",
                      index + 1))
          .at(chat_.name())
          .mend("mark it in the template with {% generation %}…{% endgeneration %}, or set chat_format");
    }
  }
  const std::string_view added = std::string_view(with).substr(before.size());
  const std::string_view rest = std::string_view(whole).substr(before.size());
  std::size_t skip = 0;
  while (skip < added.size() && !rest.starts_with(added.substr(skip))) skip += decode_utf8(added, skip).length;
  Span span{before.size(), before.size() + added.size() - std::min(skip, added.size())};
  // The end of a turn: the special token that the part holds last, or that follows it.
  std::size_t end = span.begin;
  bool ended = false;
  for (auto token = next_special(whole, span.begin); token && token->begin < span.end;
       token = next_special(whole, token->end)) {
    end = token->end;
    ended = true;
  }
  if (ended && end <= span.end && is_blank(std::string_view(whole).substr(end, span.end - end))) {
    span.end = end;
  } else if (const auto token = next_special(whole, span.end);
             token && is_blank(std::string_view(whole).substr(span.end, token->begin - span.end))) {
    span.end = token->end;
  }
  return span;
}

std::vector<TemplateEncoder::Span> TemplateEncoder::spans(const std::vector<ChatMessage>& messages,
                                                          const std::string& tools,
                                                          const jinja::Rendered& whole) const {
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == "assistant") wanted.push_back(i);
  }
  std::vector<Span> made;
  const bool tagged = chat_.has_generation_tags();
  const bool one_each = tagged && whole.generated.size() == wanted.size();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const bool trained = messages[wanted[i]].trained && (!options_.last_turn_only || i + 1 == wanted.size());
    if (!trained || (tagged && !one_each)) continue;
    if (tagged) {
      made.push_back({whole.generated[i].first, whole.generated[i].second});
    } else {
      made.push_back(span_of(messages, wanted[i], tools, whole.text));
    }
  }
  if (tagged && !one_each) {
    const bool all = !options_.last_turn_only &&
                     std::all_of(wanted.begin(), wanted.end(), [&](std::size_t i) { return messages[i].trained; });
    if (!all) {
      throw data_error(
          "the template's generation tags are not one for each assistant message, so single messages cannot be left "
          "out")
          .at(chat_.name());
    }
    for (const auto& [begin, end] : whole.generated) made.push_back({begin, end});
  }
  std::erase_if(made, [](const Span& span) { return span.begin >= span.end; });
  return made;
}

void TemplateEncoder::append(std::string_view text, const std::string& mark, bool train, EncodedSample& out) const {
  while (!text.empty()) {
    const std::size_t at = text.find(mark);
    const std::string_view piece = text.substr(0, at);
    if (!piece.empty())
      out.append(tokenizer_.encode(piece, {.add_special_tokens = false, .parse_special = true}), train);
    if (at == std::string_view::npos) return;
    text.remove_prefix(at + mark.size());
  }
}

EncodedSample TemplateEncoder::encode(const std::vector<ChatMessage>& messages, const std::string& tools) const {
  if (messages.empty()) throw data_error("a conversation without messages");
  std::string mark;
  const std::vector<ChatMessage> safe = guarded(messages, mark);
  const jinja::Rendered whole = chat_.render(safe, tools, false);
  const std::vector<Span> trained = spans(safe, tools, whole);
  if (trained.empty()) {
    throw data_error("a conversation without an assistant message to train on")
        .mend("give it a message of role assistant with content, or leave the conversation out");
  }
  EncodedSample out;
  std::size_t at = 0;
  for (const Span& span : trained) {
    const std::size_t begin = std::max(span.begin, at);
    append(std::string_view(whole.text).substr(at, begin - at), mark, false, out);
    if (span.end > begin) append(std::string_view(whole.text).substr(begin, span.end - begin), mark, true, out);
    at = std::max(at, span.end);
  }
  const std::string_view rest = std::string_view(whole.text).substr(at);
  append(rest, mark, false, out);
  const bool ends = !out.ids.empty() && tokenizer_.is_special(out.ids.back());
  if (is_blank(rest) && rest.empty() && !ends && tokenizer_.eos_id()) out.append(*tokenizer_.eos_id(), true);
  return out;
}

std::vector<TokenId> TemplateEncoder::prompt(const std::vector<ChatMessage>& messages, const std::string& tools) const {
  std::string mark;
  const std::vector<ChatMessage> safe = guarded(messages, mark);
  EncodedSample out;
  append(chat_.render(safe, tools, true).text, mark, false, out);
  return out.ids;
}

}  // namespace convoy
