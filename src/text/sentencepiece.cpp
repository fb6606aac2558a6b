#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "text/tokenizer_files.h"
#include "text/unicode.h"

namespace convoy {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // ▁

void require(const sentencepiece::util::Status& status, const char* what) {
  if (!status.ok()) throw data_error(fmt::format("{}: {}", what, status.ToString()));
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view bytes, const TokenizerConfig& config);

  using Tokenizer::encode;
  void encode(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& out) const override;
  std::string decode(const std::vector<TokenId>& ids, bool skip_special_tokens) const override;
  std::string token_bytes(TokenId id) const override;
  std::optional<TokenId> token_to_id(std::string_view token) const override;
  std::optional<std::string> id_to_token(TokenId id) const override;
  bool is_special(TokenId id) const override;
  std::int64_t vocab_size() const override { return vocab_size_; }
  std::uint64_t fingerprint() const override { return fingerprint_; }
  std::optional<TokenId> bos_id() const override { return bos_; }
  std::optional<TokenId> eos_id() const override { return eos_; }

 private:
  void add_tokens(const TokenizerConfig& config);
  void set_roles(const TokenizerConfig& config);
  const AddedToken* added(TokenId id) const;
  bool is_piece(TokenId id) const { return id >= 0 && id < pieces_; }

  sentencepiece::SentencePieceProcessor model_;
  sentencepiece::SentencePieceProcessor bare_model_;  // without the space before a text
  int pieces_ = 0;
  bool space_before_ = false;  // whether the model puts a space before a text
  bool legacy_ = true;         // whether it also does so after a special token
  bool add_bos_ = true, add_eos_ = false;
  std::vector<AddedToken> added_;
  std::unordered_map<TokenId, std::size_t> added_by_id_;
  AddedTokenSplitter splitter_;
  std::int64_t vocab_size_ = 0;
  std::uint64_t fingerprint_ = 0;
  std::optional<TokenId> bos_, eos_;
};

SentencePieceTokenizer::SentencePieceTokenizer(std::string_view bytes, const TokenizerConfig& config) {
  const char* what = "not a SentencePiece model";
  require(model_.LoadFromSerializedProto({bytes.data(), bytes.size()}), what);
  // Protocol buffers merge what is appended: normalizer_spec (3) { add_dummy_prefix (3): false }.
  const std::string bare = std::string(bytes) + std::string("\x1A\x02\x18\x00", 4);
  require(bare_model_.LoadFromSerializedProto(bare), what);
  pieces_ = model_.GetPieceSize();
  vocab_size_ = pieces_;
  std::vector<std::string> probe;
  require(model_.Encode("a", &probe), "the model cannot encode");
  space_before_ = !probe.empty() && std::string_view(probe[0]).starts_with(kSpaceMark);
  legacy_ = config.legacy.value_or(true);
  add_tokens(config);
  set_roles(config);
  Hasher hasher;
  hasher.add("convoy-sentencepiece-1:");
  hasher.add(bytes);
  for (const AddedToken& token : added_) {
    hasher.add(fmt::format("{}={},{}{}{}{};", token.content, token.id, token.special, token.lstrip, token.rstrip,
                           token.single_word));
  }
  hasher.add(fmt::format("{}{}{}", legacy_, add_bos_, add_eos_));
  fingerprint_ = hasher.value();
}

void SentencePieceTokenizer::add_tokens(const TokenizerConfig& config) {
  const auto add = [&](const AddedToken& token) {
    const auto same = [&](const AddedToken& other) { return other.id == token.id || other.content == token.content; };
    if (!token.content.empty() && std::none_of(added_.begin(), added_.end(), same)) added_.push_back(token);
  };
  for (const AddedToken& token : config.added_tokens) {
    const auto known = token_to_id(token.content);
    if ((known && *known != token.id) || (!known && is_piece(token.id))) {
      log_warning("added token '{}' is left out: its id {} is another token's in the SentencePiece model",
                  token.content, token.id);
    } else {
      add(token);
    }
  }
  for (int id = 0; id < pieces_; ++id) {  // <s>, </s>, <unk>, and further control symbols
    if (!model_.IsControl(id) && !model_.IsUnknown(id)) continue;
    AddedToken token{model_.IdToPiece(id), id};
    token.special = true;
    add(token);
  }
  for (const AddedToken& token : added_) {
    added_by_id_.emplace(token.id, added_by_id_.size());
    splitter_.add(token, token.content);
    vocab_size_ = std::max<std::int64_t>(vocab_size_, std::int64_t{token.id} + 1);
  }
}

void SentencePieceTokenizer::set_roles(const TokenizerConfig& config) {
  if (model_.bos_id() >= 0) bos_ = model_.bos_id();
  if (model_.eos_id() >= 0) eos_ = model_.eos_id();
  if (config.bos_token) {
    if (const auto id = token_to_id(*config.bos_token)) bos_ = id;
  }
  if (config.eos_token) {
    if (const auto id = token_to_id(*config.eos_token)) eos_ = id;
  }
  add_bos_ = config.add_bos_token.value_or(true);
  add_eos_ = config.add_eos_token.value_or(false);
}

const AddedToken* SentencePieceTokenizer::added(TokenId id) const {
  const auto found = added_by_id_.find(id);
  return found == added_by_id_.end() ? nullptr : &added_[found->second];
}

void SentencePieceTokenizer::encode(std::string_view text, const EncodeOptions& options,
                                    std::vector<TokenId>& out) const {
  if (options.add_special_tokens && add_bos_ && bos_) out.push_back(*bos_);
  splitter_.split(
      text, options.parse_special, [&](TokenId id) { out.push_back(id); },
      [&](std::size_t begin, std::size_t end) {
        std::vector<int> ids;
        const auto& model = begin == 0 || legacy_ ? model_ : bare_model_;
        require(model.Encode({text.data() + begin, end - begin}, &ids), "text cannot be encoded");
        out.insert(out.end(), ids.begin(), ids.end());
      });
  if (options.add_special_tokens && add_eos_ && eos_) out.push_back(*eos_);
}

std::string SentencePieceTokenizer::decode(const std::vector<TokenId>& ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!skip_special_tokens || !is_special(id)) bytes += token_bytes(id);
  }
  if (space_before_ && bytes.starts_with(' ')) bytes.erase(0, 1);
  return to_valid_utf8(bytes);
}

std::string SentencePieceTokenizer::token_bytes(TokenId id) const {
  if (const AddedToken* token = added(id)) return token->content;
  if (!is_piece(id)) {
    throw data_error(fmt::format("token id {} is not in the vocabulary (its ids end at {})", id, vocab_size_ - 1))
        .mend("check that the ids come from this tokenizer");
  }
  const std::string& piece = model_.IdToPiece(id);
  if (model_.IsByte(id)) {  // <0xNN>
    return std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
  }
  std::string out;
  std::size_t from = 0;
  for (std::size_t at = piece.find(kSpaceMark); at != std::string::npos; at = piece.find(kSpaceMark, from)) {
    out.append(piece, from, at - from);
    out += ' ';
    from = at + kSpaceMark.size();
  }
  return out.append(piece, from);
}

std::optional<TokenId> SentencePieceTokenizer::token_to_id(std::string_view token) const {
  const auto found =
      std::find_if(added_.begin(), added_.end(), [&](const AddedToken& a) { return a.content == token; });
  if (found != added_.end()) return found->id;
  const int id = model_.PieceToId({token.data(), token.size()});
  return is_piece(id) && model_.IdToPiece(id) == token ? std::optional<TokenId>(id) : std::nullopt;
}

std::optional<std::string> SentencePieceTokenizer::id_to_token(TokenId id) const {
  if (const AddedToken* token = added(id)) return token->content;
  return is_piece(id) ? std::optional(model_.IdToPiece(id)) : std::nullopt;
}

bool SentencePieceTokenizer::is_special(TokenId id) const {
  const AddedToken* token = added(id);
  return token != nullptr && token->special;
}

}  // namespace

std::unique_ptr<Tokenizer> read_sentencepiece(std::string_view bytes, const std::string& name,
                                              const TokenizerConfig& config) {
  try {
    return std::make_unique<SentencePieceTokenizer>(bytes, config);
  } catch (Error& failure) {
    throw failure.at(name);
  }
}

}  // namespace convoy
