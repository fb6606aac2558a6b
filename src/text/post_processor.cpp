#include "text/post_processor.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/component.h"
#include "text/vocabulary.h"

namespace convoy {
namespace {

TokenId read_id(Component& c, const Json& value) {
  if (value.is_number_integer()) {
    const auto id = value.get<std::int64_t>();
    if (id >= 0 && id <= Vocabulary::kLargestId) return static_cast<TokenId>(id);
  }
  c.wrong(
      fmt::format("has a token id that is not one: {}", value.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

void append_special(Component& c, const Json& special_tokens, const Json& item, std::vector<TokenId>& ids) {
  const auto name = item.is_object() ? item.find("id") : item.end();
  if (!item.is_object() || name == item.end() || !name->is_string()) c.wrong("has a SpecialToken without 'id'");
  const auto entry = special_tokens.find(name->get<std::string>());
  if (entry == special_tokens.end() || !entry->is_object() || !entry->contains("ids") || !(*entry)["ids"].is_array()) {
    c.wrong(fmt::format("uses a special token '{}' that its special_tokens lack", name->get<std::string>()));
  }
  for (const Json& id : (*entry)["ids"]) ids.push_back(read_id(c, id));
}

PostProcessor read_template(Component& c) {
  const Json& single = c.raw("single");
  const Json& special_tokens = c.raw("special_tokens");
  c.ignore("pair");  // training and generation encode one text at a time
  if (!single.is_array() || !special_tokens.is_object())
    c.wrong("needs a list 'single' and an object 'special_tokens'");
  PostProcessor out;
  bool seen_text = false;
  for (const Json& item : single) {
    if (!item.is_object() || item.size() != 1) c.wrong("has an item in 'single' that is not an object of one key");
    const Json& value = item.begin().value();
    if (item.begin().key() == "SpecialToken") {
      append_special(c, special_tokens, value, seen_text ? out.after : out.before);
    } else if (item.begin().key() == "Sequence") {
      if (seen_text || !value.is_object() || value.value("id", Json()) != "A") {
        c.wrong("must use the text $A exactly once in 'single'");
      }
      seen_text = true;
    } else {
      c.wrong(fmt::format("has an unknown item '{}' in 'single'", item.begin().key()));
    }
  }
  if (!seen_text) c.wrong("must use the text $A exactly once in 'single'");
  return out;
}

// ["[CLS]", 101]
TokenId read_named_id(Component& c, const std::string& key) {
  const Json& value = c.raw(key);
  if (!value.is_array() || value.size() != 2) c.wrong(fmt::format("needs [token, id] for '{}'", key));
  return read_id(c, value[1]);
}

PostProcessor read_one(Component& c) {
  if (c.type() == "TemplateProcessing") return read_template(c);
  if (c.type() == "BertProcessing" || c.type() == "RobertaProcessing") {
    const TokenId cls = read_named_id(c, "cls"), sep = read_named_id(c, "sep");
    c.ignore("trim_offsets");
    c.ignore("add_prefix_space");
    return {{cls}, {sep}};
  }
  if (c.type() == "ByteLevel") {
    for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) c.ignore(key);
    return {};
  }
  c.unsupported();
}

}  // namespace

PostProcessor PostProcessor::read(const Json& json) {
  PostProcessor out;
  for (Component& component : flatten_components(json, "post_processor", "processors")) {
    PostProcessor one = read_one(component);
    component.finish();
    if (one.before.empty() && one.after.empty()) continue;
    // Where a file has two, Hugging Face takes what the first gives for a pair of texts: nobody can mean that.
    if (!out.before.empty() || !out.after.empty()) component.wrong("follows another one that adds tokens");
    out = std::move(one);
  }
  return out;
}

}  // namespace convoy
