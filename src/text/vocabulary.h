// The tokens of a vocabulary: id to written form and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace convoy {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
template <typename Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

// Ids may have holes. A token's written form is unique, and so is its id.
class Vocabulary {
 public:
  // Ids beyond this are refused: tables are indexed by id.
  static constexpr std::int64_t kLargestId = (std::int64_t{1} << 24) - 1;

  // Data errors: an id that is negative or too large, an id or a written form that is already taken.
  void add(std::string_view token, std::int64_t id);
  void reserve(std::size_t tokens) { ids_.reserve(tokens); }

  std::optional<TokenId> id_of(std::string_view token) const;
  bool contains(TokenId id) const { return id >= 0 && id < size() && entries_[static_cast<std::size_t>(id)].used; }
  // The written form; `id` must be contained.
  std::string_view token(TokenId id) const {
    const Entry& entry = entries_[static_cast<std::size_t>(id)];
    return std::string_view(text_).substr(entry.offset, entry.length);
  }
  // One more than the largest id.
  std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }
  // How many tokens there are.
  std::size_t count() const { return ids_.size(); }

 private:
  struct Entry {
    std::uint64_t offset = 0;
    std::uint32_t length = 0;
    bool used = false;
  };
  std::string text_;
  std::vector<Entry> entries_;
  StringMap<TokenId> ids_;
};

}  // namespace convoy
