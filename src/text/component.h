// One component of a tokenizer.json ({"type": "…", …}), read with errors that name it. Options that are not known are
// errors too: they could change how text is encoded.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/pattern.h"

namespace convoy {

class Component {
 public:
  // `kind` is the place in the file: "normalizer", "pre_tokenizer", ….
  Component(const Json& json, const std::string& kind);

  const std::string& type() const { return type_; }
  // "pre_tokenizer 'Split'"
  std::string name() const { return kind_ + " '" + type_ + "'"; }
  const std::string& kind() const { return kind_; }

  // An option's value; the fallback if it is missing or null.
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key, std::optional<std::string> fallback = std::nullopt);
  std::int64_t integer(const std::string& key, std::optional<std::int64_t> fallback = std::nullopt);
  // A text of exactly one character.
  char32_t character(const std::string& key, std::optional<char32_t> fallback = std::nullopt);
  // {"String": "…"} or {"Regex": "…"}.
  Pattern pattern(const std::string& key);
  // The value as it is, null if missing.
  const Json& raw(const std::string& key);
  // Known, but without effect on ids and text.
  void ignore(const std::string& key) { known_.insert(key); }

  // Throws if the component has an option that nobody asked for.
  void finish() const;
  [[noreturn]] void unsupported() const;
  [[noreturn]] void wrong(const std::string& what) const;

 private:
  const Json& json_;
  std::string kind_, type_;
  std::set<std::string> known_;
};

// The components of `json` in order, each Sequence (its parts under `parts_key`) replaced by its parts; null gives
// none.
std::vector<Component> flatten_components(const Json& json, const std::string& kind, const std::string& parts_key);

}  // namespace convoy
