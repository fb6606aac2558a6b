// Reads a Hugging Face config.json with errors that name the key.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace convoy {

class ConfigReader {
 public:
  // `where` names the file, and for a nested object the path to it.
  ConfigReader(const Json& config, std::string where) : config_(config), where_(std::move(where)) {}

  bool has(const std::string& key) const;  // present and not null
  std::int64_t integer(const std::string& key) const;
  std::int64_t integer(const std::string& key, std::int64_t fallback) const;
  double number(const std::string& key) const;
  double number(const std::string& key, double fallback) const;
  bool boolean(const std::string& key, bool fallback) const;
  std::string text(const std::string& key) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  std::vector<double> numbers(const std::string& key) const;
  std::vector<std::string> texts(const std::string& key) const;
  // The nested object, if there is one.
  std::optional<ConfigReader> object(const std::string& key) const;

  // An integer of at least 1.
  std::int64_t positive(const std::string& key) const;
  std::int64_t positive(const std::string& key, std::int64_t fallback) const;
  // Throws unless the key is absent, null or equal to the only value supported.
  void only(const std::string& key, const Json& supported, const std::string& remedy) const;

  const std::string& where() const { return where_; }

 private:
  const Json& at(const std::string& key) const;
  const Json& config_;
  std::string where_;
};

}  // namespace convoy
