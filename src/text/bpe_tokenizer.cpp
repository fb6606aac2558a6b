#include "text/bpe_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"

namespace convoy {
namespace {

// A file may hold any number of Replace steps; text that only ever grows is refused before it fills the memory.
constexpr std::size_t kMostGrowth = 1000, kAlwaysFine = std::size_t{1} << 20;

void normalize(const std::vector<std::unique_ptr<const Normalizer>>& normalizers, std::string& text) {
  const std::size_t most = text.size() > SIZE_MAX / kMostGrowth ? SIZE_MAX : text.size() * kMostGrowth + kAlwaysFine;
  for (const auto& normalizer : normalizers) {
    normalizer->apply(text);
    if (text.size() > most) throw data_error(fmt::format("the normalizers make a text of {} bytes", text.size()));
  }
}

}  // namespace

BpeTokenizer::BpeTokenizer(BpeTokenizerParts parts) : parts_(std::move(parts)) {
  vocab_size_ = parts_.model->vocabulary().size();
  add_tokens();
  for (const auto& [name, id] : parts_.aliases) added_ids_.try_emplace(name, id);
  for (const auto* ids : {&parts_.post_processor.before, &parts_.post_processor.after}) {
    for (const TokenId id : *ids) {
      if (!id_to_token(id)) throw data_error(fmt::format("the post_processor uses the id {}, which has no token", id));
    }
  }
}

void BpeTokenizer::add_tokens() {
  const Vocabulary& vocabulary = parts_.model->vocabulary();
  for (std::size_t i = 0; i < parts_.added_tokens.size(); ++i) {
    const AddedToken& token = parts_.added_tokens[i];
    if (token.id < 0 || token.id > Vocabulary::kLargestId) {
      throw data_error(fmt::format("added token '{}' has the id {}, which is outside 0…{}", token.content, token.id,
                                   Vocabulary::kLargestId));
    }
    const auto in_model = vocabulary.id_of(token.content);
    if (in_model && *in_model != token.id) {
      throw data_error(fmt::format("added token '{}' has the id {}, but {} in the model's vocabulary", token.content,
                                   token.id, *in_model));
    }
    if (!in_model && vocabulary.contains(token.id)) {
      throw data_error(fmt::format("added token '{}' has the id {} of the token '{}'", token.content, token.id,
                                   vocabulary.token(token.id)));
    }
    const auto [entry, fresh] = added_by_id_.try_emplace(token.id, i);
    if (!fresh) {
      throw data_error(fmt::format("added tokens '{}' and '{}' have the same id {}",
                                   parts_.added_tokens[entry->second].content, token.content, token.id));
    }
    if (!added_ids_.try_emplace(token.content, token.id).second) {
      throw data_error(fmt::format("added token '{}' occurs twice", token.content));
    }
    vocab_size_ = std::max<std::int64_t>(vocab_size_, std::int64_t{token.id} + 1);
  }
  for (const AddedToken& token : parts_.added_tokens) {
    added_texts_.push_back(token.content);
    if (token.normalized) normalize(parts_.normalizers, added_texts_.back());
  }
  // Where two tokens have one normalized form, special ones come first.
  for (const bool special : {true, false}) {
    for (std::size_t i = 0; i < added_texts_.size(); ++i) {
      const AddedToken& token = parts_.added_tokens[i];
      if (token.special == special)
        (token.normalized ? normalized_splitter_ : raw_splitter_).add(token, added_texts_[i]);
    }
  }
}

void BpeTokenizer::encode(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& out) const {
  const PostProcessor& post = parts_.post_processor;
  if (options.add_special_tokens) out.insert(out.end(), post.before.begin(), post.before.end());
  if (raw_splitter_.empty()) {
    encode_raw(text, true, options.parse_special, out);
  } else {
    raw_splitter_.split(
        text, options.parse_special, [&](TokenId id) { out.push_back(id); },
        [&](std::size_t begin, std::size_t end) {
          encode_raw(text.substr(begin, end - begin), begin == 0, options.parse_special, out);
        });
  }
  if (options.add_special_tokens) out.insert(out.end(), post.after.begin(), post.after.end());
}

void BpeTokenizer::encode_raw(std::string_view text, bool at_start, bool parse_special,
                              std::vector<TokenId>& out) const {
  std::string normalized;
  if (!parts_.normalizers.empty()) {
    normalized = text;
    normalize(parts_.normalizers, normalized);
    text = normalized;
  }
  if (normalized_splitter_.empty()) return encode_normalized(text, at_start, out);
  normalized_splitter_.split(
      text, parse_special, [&](TokenId id) { out.push_back(id); },
      [&](std::size_t begin, std::size_t end) {
        encode_normalized(text.substr(begin, end - begin), at_start && begin == 0, out);
      });
}

void BpeTokenizer::encode_normalized(std::string_view text, bool at_start, std::vector<TokenId>& out) const {
  if (text.empty()) return;
  const BpeModel& model = *parts_.model;
  if (const auto pattern = parts_.pre_tokenizers.only_pattern()) {
    constexpr std::size_t kBatch = 1024;
    std::vector<std::size_t> ends;
    ends.reserve(std::min(text.size(), kBatch));
    for (std::size_t begin = 0; begin < text.size();) {
      ends.clear();
      split_by_pattern(*pattern, text, begin, kBatch, ends);
      for (const std::size_t end : ends) {
        model.encode(text.substr(begin, end - begin), out);
        begin = end;
      }
    }
    return;
  }
  TextArena arena;
  std::vector<Piece> pieces{{text, at_start}}, spare;
  parts_.pre_tokenizers.apply(pieces, spare, arena);
  for (const Piece& piece : pieces) model.encode(piece.text, out);
}

std::string BpeTokenizer::text_to_decode(TokenId id) const {
  if (const auto added = added_by_id_.find(id); added != added_by_id_.end()) return added_texts_[added->second];
  auto token = id_to_token(id);
  if (!token) {
    throw data_error(fmt::format("token id {} is not in the vocabulary (its ids end at {})", id, vocab_size_ - 1))
        .mend("check that the ids come from this tokenizer");
  }
  return *std::move(token);
}

std::string BpeTokenizer::decode(const std::vector<TokenId>& ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const TokenId id : ids) {
    if (!skip_special_tokens || !is_special(id)) tokens.push_back(text_to_decode(id));
  }
  return to_valid_utf8(parts_.decoder.decode(std::move(tokens)));
}

std::string BpeTokenizer::token_bytes(TokenId id) const {
  return parts_.decoder.token_bytes(text_to_decode(id));
}

std::optional<TokenId> BpeTokenizer::token_to_id(std::string_view token) const {
  if (const auto added = added_ids_.find(token); added != added_ids_.end()) return added->second;
  return parts_.model->vocabulary().id_of(token);
}

std::optional<std::string> BpeTokenizer::id_to_token(TokenId id) const {
  if (const auto added = added_by_id_.find(id); added != added_by_id_.end()) {
    return parts_.added_tokens[added->second].content;
  }
  const Vocabulary& vocabulary = parts_.model->vocabulary();
  return vocabulary.contains(id) ? std::optional(std::string(vocabulary.token(id))) : std::nullopt;
}

bool BpeTokenizer::is_special(TokenId id) const {
  const auto added = added_by_id_.find(id);
  return added != added_by_id_.end() && parts_.added_tokens[added->second].special;
}

}  // namespace convoy
