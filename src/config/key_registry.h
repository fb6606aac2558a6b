// The one table of keys. Parsing, flags, help, the reference page and suggestions all read it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "config/run_config.h"

namespace convoy {

// A checked value. A map is its JSON text; nothing (monostate) is null.
using SettingValue = std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<std::string>>;

struct Key {
  enum class Kind : std::uint8_t {
    kBool,
    kInteger,
    kReal,
    kText,
    kBytes,
    kChoice,
    kList,
    kMap,
    kTextOrMap,
    kTextOrBool,
    kAny
  };
  enum class Effect : std::uint8_t { kUsed, kNone, kRefused };
  struct Word {  // one spelling of a choice; the first with an index is the one printed
    std::string text;
    std::int64_t index = 0;
  };
  struct Refusal {  // a spelling that exists elsewhere but is refused here
    std::string text, remedy;
  };
  struct Alias {
    std::string name;
    bool outdated = false;  // an old name: using it is noted
  };

  std::string name;
  Kind kind = Kind::kAny;
  Effect effect = Effect::kUsed;
  std::string help;  // meaning; why there is no effect; what to do instead
  bool nullable = false;
  std::string unset;  // what null or no value means, for the reference
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  bool above_min = false, below_max = false;  // the bound itself is not allowed
  bool of_process = false;                    // may differ between the ranks of a job: places, threads, logs
  std::vector<Word> words;
  std::vector<Refusal> refusals;
  std::vector<Alias> aliases;
  std::function<SettingValue(const RunConfig&)> get;
  std::function<void(RunConfig&, const SettingValue&)> set;

  Key& range(double low, double high = std::numeric_limits<double>::infinity()) {
    min = low;
    max = high;
    return *this;
  }
  Key& open_min() {
    above_min = true;
    return *this;
  }
  Key& open_max() {
    below_max = true;
    return *this;
  }
  Key& also(std::string other) {
    aliases.push_back({std::move(other), false});
    return *this;
  }
  Key& old(std::string other) {
    aliases.push_back({std::move(other), true});
    return *this;
  }
  Key& word(std::string text, std::int64_t index) {
    words.push_back({std::move(text), index});
    return *this;
  }
  Key& refuse(std::string text, std::string remedy) {
    refusals.push_back({std::move(text), std::move(remedy)});
    return *this;
  }
  Key& when_unset(std::string meaning) {
    unset = std::move(meaning);
    return *this;
  }
  // null sets the type's zero (max_grad_norm: null).
  Key& null_is_zero() {
    nullable = true;
    return *this;
  }
  Key& per_process() {
    of_process = true;
    return *this;
  }
  Key& bytes() {
    kind = Kind::kBytes;
    return *this;
  }
  Key& as(Kind other) {
    kind = other;
    return *this;
  }
};

struct Section {
  std::string title;
  std::vector<Key> keys;

  // A key that is a field of RunConfig; the field's type gives the key's.
  template <typename T>
  Key& add(std::string name, T RunConfig::*field, std::string help);
  // An enumeration with its words in the order of its values.
  template <typename E>
  Key& add_choice(std::string name, E RunConfig::*field, const std::vector<std::string>& words, std::string help);
  // A text field with a fixed set of words.
  Key& add_word(std::string name, std::string RunConfig::*field, std::vector<std::string> words, std::string help);
  Key& none(std::string name, std::string why);
  Key& refused(std::string name, std::string remedy);
};

// All sections, in the order of help and reference.
const std::vector<Section>& key_sections();
// By name or alias; null if unknown.
const Key* find_key(const std::string& name);
// Every name and alias.
const std::vector<std::string>& key_names();

// The sections' builders, one file per group.
std::vector<Section> training_sections();
std::vector<Section> convoy_sections();
std::vector<Section> other_sections();

namespace key_detail {

template <typename T>
struct Inner {
  using type = T;
  static constexpr bool optional = false;
};
template <typename T>
struct Inner<std::optional<T>> {
  using type = T;
  static constexpr bool optional = true;
};

template <typename T>
constexpr Key::Kind kind_of() {
  if constexpr (std::is_same_v<T, bool>) return Key::Kind::kBool;
  if constexpr (std::is_same_v<T, std::int64_t>) return Key::Kind::kInteger;
  if constexpr (std::is_same_v<T, double>) return Key::Kind::kReal;
  if constexpr (std::is_same_v<T, std::string>) return Key::Kind::kText;
  return Key::Kind::kList;
}

}  // namespace key_detail

template <typename T>
Key& Section::add(std::string name, T RunConfig::*field, std::string help) {
  using Inner = key_detail::Inner<T>;
  using Stored = typename Inner::type;
  Key key;
  key.name = std::move(name);
  key.kind = key_detail::kind_of<Stored>();
  key.help = std::move(help);
  key.nullable = Inner::optional || std::is_same_v<Stored, std::vector<std::string>>;
  key.get = [field](const RunConfig& config) -> SettingValue {
    if constexpr (Inner::optional) {
      if (!(config.*field)) return {};
      return SettingValue(*(config.*field));
    } else {
      return SettingValue(config.*field);
    }
  };
  key.set = [field](RunConfig& config, const SettingValue& value) {
    const auto* stored = std::get_if<Stored>(&value);
    if (stored != nullptr) {
      config.*field = *stored;
    } else {
      config.*field = T{};
    }
  };
  return keys.emplace_back(std::move(key));
}

template <typename E>
Key& Section::add_choice(std::string name, E RunConfig::*field, const std::vector<std::string>& words,
                         std::string help) {
  using Inner = key_detail::Inner<E>;
  using Stored = typename Inner::type;
  Key key;
  key.name = std::move(name);
  key.kind = Key::Kind::kChoice;
  key.help = std::move(help);
  key.nullable = Inner::optional;
  for (std::size_t i = 0; i < words.size(); ++i) key.word(words[i], static_cast<std::int64_t>(i));
  key.get = [field](const RunConfig& config) -> SettingValue {
    if constexpr (Inner::optional) {
      if (!(config.*field)) return {};
      return static_cast<std::int64_t>(*(config.*field));
    } else {
      return static_cast<std::int64_t>(config.*field);
    }
  };
  key.set = [field](RunConfig& config, const SettingValue& value) {
    const auto* index = std::get_if<std::int64_t>(&value);
    if (index != nullptr) {
      config.*field = static_cast<Stored>(*index);
    } else {
      config.*field = E{};
    }
  };
  return keys.emplace_back(std::move(key));
}

}  // namespace convoy
