#include "config/key_registry.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"

namespace convoy {

Key& Section::add_word(std::string name, std::string RunConfig::*field, std::vector<std::string> words,
                       std::string help) {
  Key key;
  key.name = std::move(name);
  key.kind = Key::Kind::kChoice;
  key.help = std::move(help);
  for (std::size_t i = 0; i < words.size(); ++i) key.word(words[i], static_cast<std::int64_t>(i));
  key.get = [field, words](const RunConfig& config) -> SettingValue {
    const auto found = std::find(words.begin(), words.end(), config.*field);
    check(found != words.end(), "a text field holds a word that its key does not know");
    return static_cast<std::int64_t>(found - words.begin());
  };
  key.set = [field, words](RunConfig& config, const SettingValue& value) {
    config.*field = words.at(static_cast<std::size_t>(std::get<std::int64_t>(value)));
  };
  return keys.emplace_back(std::move(key));
}

Key& Section::none(std::string name, std::string why) {
  Key key;
  key.name = std::move(name);
  key.effect = Key::Effect::kNone;
  key.help = std::move(why);
  return keys.emplace_back(std::move(key));
}

Key& Section::refused(std::string name, std::string remedy) {
  Key key;
  key.name = std::move(name);
  key.effect = Key::Effect::kRefused;
  key.help = std::move(remedy);
  return keys.emplace_back(std::move(key));
}

const std::vector<Section>& key_sections() {
  static const std::vector<Section> sections = [] {
    std::vector<Section> all = convoy_sections();
    for (Section& section : training_sections()) all.push_back(std::move(section));
    for (Section& section : other_sections()) all.push_back(std::move(section));
    return all;
  }();
  return sections;
}

namespace {

struct Index {
  std::unordered_map<std::string, const Key*> by_name;
  std::vector<std::string> names;

  void add(const std::string& name, const Key& key) {
    check(by_name.emplace(name, &key).second, "two keys share a name");
    names.push_back(name);
  }
};

const Index& key_index() {
  static const Index index = [] {
    Index built;
    for (const Section& section : key_sections()) {
      for (const Key& key : section.keys) {
        built.add(key.name, key);
        for (const Key::Alias& alias : key.aliases) built.add(alias.name, key);
      }
    }
    return built;
  }();
  return index;
}

}  // namespace

const Key* find_key(const std::string& name) {
  const auto found = key_index().by_name.find(name);
  return found == key_index().by_name.end() ? nullptr : found->second;
}

const std::vector<std::string>& key_names() {
  return key_index().names;
}

}  // namespace convoy
