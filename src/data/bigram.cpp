#include "data/bigram.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace convoy {
namespace {

std::vector<TokenId> tokens_of(const TokenData& data, DocumentId document) {
  std::vector<TokenId> ids(static_cast<std::size_t>(data.length(document)));
  data.copy(document, 0, data.length(document), ids.data());
  return ids;
}

struct Pair {
  std::uint64_t key;  // first token in the upper half
  std::int64_t count;
};

std::uint64_t pair_key(TokenId first, TokenId second) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(first)) << 32 | static_cast<std::uint32_t>(second);
}

class Bigram {
 public:
  Bigram(const TokenData& data, std::span<const DocumentId> documents, std::int64_t vocab)
      : vocab_(static_cast<double>(vocab)) {
    const auto size = static_cast<std::size_t>(vocab);
    unigrams_.assign(size, 0);
    followers_.assign(size, 0);
    after_.assign(size, 0);
    continuations_.assign(size, 0);
    std::vector<std::uint64_t> keys;
    for (DocumentId d : documents) {
      const std::vector<TokenId> ids = tokens_of(data, d);
      for (std::size_t i = 1; i < ids.size(); ++i) {
        keys.push_back(pair_key(ids[i - 1], ids[i]));
        ++unigrams_[static_cast<std::size_t>(ids[i])];
        ++after_[static_cast<std::size_t>(ids[i - 1])];
        ++total_;
      }
    }
    std::sort(keys.begin(), keys.end());
    double once = 0, twice = 0;
    for (std::size_t i = 0; i < keys.size();) {
      std::size_t end = i;
      while (end < keys.size() && keys[end] == keys[i]) ++end;
      pairs_.push_back({keys[i], static_cast<std::int64_t>(end - i)});
      once += end - i == 1;
      twice += end - i == 2;
      ++followers_[static_cast<std::size_t>(keys[i] >> 32)];
      ++continuations_[static_cast<std::size_t>(keys[i] & 0xffffffffu)];
      i = end;
    }
    discount_ = once + twice > 0 ? once / (once + 2 * twice) : 0.5;
  }

  double unigram_loss(TokenId token) const {
    return -std::log((static_cast<double>(unigrams_[static_cast<std::size_t>(token)]) + 1) /
                     (static_cast<double>(total_) + vocab_));
  }

  double bigram_loss(TokenId before, TokenId token) const {
    const double lower = (static_cast<double>(continuations_[static_cast<std::size_t>(token)]) + 1) /
                         (static_cast<double>(pairs_.size()) + vocab_);
    const auto context = static_cast<double>(after_[static_cast<std::size_t>(before)]);
    if (context == 0) return -std::log(lower);
    const double seen = std::max(0.0, static_cast<double>(count(before, token)) - discount_) / context;
    const double rest = discount_ * static_cast<double>(followers_[static_cast<std::size_t>(before)]) / context;
    return -std::log(seen + rest * lower);
  }

 private:
  std::int64_t count(TokenId before, TokenId token) const {
    const std::uint64_t key = pair_key(before, token);
    const auto place = std::lower_bound(pairs_.begin(), pairs_.end(), key,
                                        [](const Pair& pair, std::uint64_t k) { return pair.key < k; });
    return place != pairs_.end() && place->key == key ? place->count : 0;
  }

  double vocab_;
  std::int64_t total_ = 0;
  double discount_ = 0;
  std::vector<std::int64_t> unigrams_, followers_, after_, continuations_;  // by token
  std::vector<Pair> pairs_;                                                 // by key
};

}  // namespace

BigramBaseline bigram_baseline(const TokenData& train, std::span<const DocumentId> train_documents,
                               const TokenData& validation, std::span<const DocumentId> validation_documents,
                               std::int64_t vocab_size) {
  const Bigram model(train, train_documents, vocab_size);
  BigramBaseline result;
  for (DocumentId d : validation_documents) {
    const std::vector<TokenId> ids = tokens_of(validation, d);
    for (const TokenSpan& span : validation.trained(d)) {
      for (std::size_t i = std::max<std::size_t>(span.begin, 1); i < span.end; ++i) {
        result.unigram_loss += model.unigram_loss(ids[i]);
        result.bigram_loss += model.bigram_loss(ids[i - 1], ids[i]);
        ++result.targets;
      }
    }
  }
  if (result.targets > 0) {
    result.unigram_loss /= static_cast<double>(result.targets);
    result.bigram_loss /= static_cast<double>(result.targets);
  }
  return result;
}

}  // namespace convoy
