#include "text/vocabulary.h"

#include <fmt/format.h>

#include "base/error.h"

namespace convoy {

void Vocabulary::add(std::string_view token, std::int64_t id) {
  if (id < 0 || id > kLargestId) {
    throw data_error(fmt::format("token '{}' has the id {}, which is outside 0…{}", token, id, kLargestId));
  }
  const auto index = static_cast<std::size_t>(id);
  if (index < entries_.size() && entries_[index].used) {
    throw data_error(
        fmt::format("tokens '{}' and '{}' have the same id {}", this->token(static_cast<TokenId>(id)), token, id));
  }
  const auto [entry, fresh] = ids_.try_emplace(std::string(token), static_cast<TokenId>(id));
  if (!fresh) throw data_error(fmt::format("token '{}' has two ids, {} and {}", token, entry->second, id));
  if (index >= entries_.size()) entries_.resize(index + 1);
  entries_[index] = {text_.size(), static_cast<std::uint32_t>(token.size()), true};
  text_ += token;
}

std::optional<TokenId> Vocabulary::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace convoy
