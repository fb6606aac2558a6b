#include "text/tokenizer_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "text/vocabulary.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

Json read_object(const fs::path& file) {
  if (!fs::exists(file)) return Json::object();
  Json json = read_json(file);
  if (!json.is_object()) throw data_error("must be a JSON object").at(file.string());
  return json;
}

[[noreturn]] void wrong(const fs::path& file, const std::string& key, const char* what) {
  throw data_error(fmt::format("'{}' {}", key, what)).at(file.string());
}

const Json& value_of(const Json& object, const std::string& key) {
  static const Json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

// "<s>", or {"content": "<s>", …}.
std::optional<std::string> read_token_name(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object()) {
    const Json& content = value_of(value, "content");
    if (content.is_string()) return content.get<std::string>();
  }
  return std::nullopt;
}

void add_role(const Json& value, const fs::path& file, const std::string& key, TokenizerConfig& out,
              std::optional<std::string>* slot) {
  if (value.is_null() || (value.is_boolean() && !value.get<bool>())) return;
  const auto name = read_token_name(value);
  if (!name) wrong(file, key, "must be a token or null");
  if (std::find(out.special_tokens.begin(), out.special_tokens.end(), *name) == out.special_tokens.end()) {
    out.special_tokens.push_back(*name);
  }
  if (slot != nullptr && !*slot) *slot = name;
}

void read_roles(const Json& json, const fs::path& file, TokenizerConfig& out) {
  add_role(value_of(json, "bos_token"), file, "bos_token", out, &out.bos_token);
  add_role(value_of(json, "eos_token"), file, "eos_token", out, &out.eos_token);
  add_role(value_of(json, "unk_token"), file, "unk_token", out, &out.unk_token);
  for (const char* key : {"pad_token", "sep_token", "cls_token", "mask_token"})
    add_role(value_of(json, key), file, key, out, nullptr);
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const Json& extra = value_of(json, key);
    if (extra.is_null()) continue;
    if (!extra.is_array() && !extra.is_object()) wrong(file, key, "must be a list of tokens");
    for (const Json& item : extra) add_role(item, file, key, out, nullptr);
  }
}

bool read_flag(const Json& token, const fs::path& file, const std::string& key, bool fallback) {
  const Json& value = value_of(token, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) wrong(file, key, "must be true or false");
  return value.get<bool>();
}

std::optional<bool> read_option(const Json& json, const fs::path& file, const std::string& key) {
  if (value_of(json, key).is_null()) return std::nullopt;
  return read_flag(json, file, key, false);
}

TokenId checked_id(std::int64_t id, const fs::path& file, const std::string& key) {
  if (id < 0 || id > Vocabulary::kLargestId) wrong(file, key, "is not a token id");
  return static_cast<TokenId>(id);
}

void read_added_tokens(const Json& json, const fs::path& file, TokenizerConfig& out) {
  const Json& decoder = value_of(json, "added_tokens_decoder");
  if (decoder.is_null()) return;
  if (!decoder.is_object()) wrong(file, "added_tokens_decoder", "must be an object");
  for (const auto& [key, value] : decoder.items()) {
    std::int64_t id = -1;
    const auto [end, failed] = std::from_chars(key.data(), key.data() + key.size(), id);
    const auto content = read_token_name(value);
    if (failed != std::errc() || end != key.data() + key.size() || !content) {
      wrong(file, "added_tokens_decoder." + key, "must be a token under its id");
    }
    AddedToken token{*content, checked_id(id, file, "added_tokens_decoder." + key)};
    token.special = read_flag(value, file, "special", false);
    token.normalized = read_flag(value, file, "normalized", !token.special);
    token.lstrip = read_flag(value, file, "lstrip", false);
    token.rstrip = read_flag(value, file, "rstrip", false);
    token.single_word = read_flag(value, file, "single_word", false);
    out.added_tokens.push_back(std::move(token));
  }
}

// {"<|im_start|>": 151644, …}
void read_added_tokens_file(const fs::path& file, TokenizerConfig& out) {
  const Json json = read_object(file);
  for (const auto& [content, id] : json.items()) {
    if (!id.is_number_integer()) wrong(file, content, "must be a token id");
    const auto same = [&name = content](const AddedToken& token) { return token.content == name; };
    if (std::any_of(out.added_tokens.begin(), out.added_tokens.end(), same)) continue;
    AddedToken token{content, checked_id(id.get<std::int64_t>(), file, content)};
    token.normalized = true;
    out.added_tokens.push_back(std::move(token));
  }
}

std::optional<TokenId> read_generation_id(const Json& json, const fs::path& file, const std::string& key) {
  const Json* value = &value_of(json, key);
  if (value->is_array() && !value->empty()) value = &value->front();
  if (!value->is_number_integer() || value->get<std::int64_t>() < 0) return std::nullopt;  // -1 is "none"
  return checked_id(value->get<std::int64_t>(), file, key);
}

}  // namespace

TokenizerConfig TokenizerConfig::read(const fs::path& folder) {
  TokenizerConfig out;
  const fs::path file = folder / "tokenizer_config.json";
  const Json json = read_object(file);
  out.tokenizer_class = value_of(json, "tokenizer_class").is_string() ? json["tokenizer_class"].get<std::string>() : "";
  read_roles(json, file, out);
  read_added_tokens(json, file, out);
  out.add_bos_token = read_option(json, file, "add_bos_token");
  out.add_eos_token = read_option(json, file, "add_eos_token");
  out.legacy = read_option(json, file, "legacy");
  out.add_prefix_space = read_option(json, file, "add_prefix_space");
  const fs::path map = folder / "special_tokens_map.json";
  read_roles(read_object(map), map, out);
  read_added_tokens_file(folder / "added_tokens.json", out);
  const fs::path generation = folder / "generation_config.json";
  const Json settings = read_object(generation);
  out.bos_id = read_generation_id(settings, generation, "bos_token_id");
  out.eos_id = read_generation_id(settings, generation, "eos_token_id");
  for (AddedToken& token : out.added_tokens) {
    const auto& roles = out.special_tokens;
    token.special = token.special || std::find(roles.begin(), roles.end(), token.content) != roles.end();
  }
  return out;
}

}  // namespace convoy
