#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "text/piece_cache.h"
#include "text/unicode.h"

namespace convoy {
namespace {

constexpr std::size_t kShortPiece = 128;                // symbols; longer pieces are merged with a heap
constexpr std::string_view kWordMark = "\xE2\x96\x81";  // ▁

std::uint64_t next_cache_key() {
  static std::atomic<std::uint64_t> next{1};
  return next++;
}

bool is_continuation(int byte) {
  return byte >= 0x80 && byte < 0xC0;
}

std::string describe(std::string_view symbol) {
  const CodePoint c = symbol.empty() ? CodePoint{kReplacement, 0, false} : decode_utf8(symbol, 0);
  return c.valid ? fmt::format("'{}' (U+{:04X})", symbol, static_cast<std::uint32_t>(c.code)) : "an invalid byte";
}

}  // namespace

BpeModel::BpeModel(Vocabulary vocabulary, const std::vector<BpeMerge>& merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)), cache_key_(next_cache_key()) {
  sides_.assign(static_cast<std::size_t>(vocabulary_.size()), 0);
  pairs_.reset(merges.size());
  for (const BpeMerge& merge : merges) {
    pairs_.put(merge.left, merge.right, merge.rank);
    sides_[static_cast<std::size_t>(merge.left)] |= 1u;
    sides_[static_cast<std::size_t>(merge.right)] |= 2u;
    if (merge.rank >= results_.size()) results_.resize(merge.rank + 1, -1);
    results_[merge.rank] = merge.result;
  }
  if (options_.unk_token) unk_id_ = vocabulary_.id_of(*options_.unk_token);
  for (unsigned b = 0; b < 256; ++b) fallback_ids_[b] = vocabulary_.id_of(fmt::format("<0x{:02X}>", b)).value_or(-1);
  if (options_.byte_level) map_bytes();
  if (raw_bytes_) map_characters(merges);
  cut_words_ = can_cut_words(merges);
}

void BpeModel::map_bytes() {
  raw_bytes_ = options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
  for (unsigned b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    byte_ids_[b] = vocabulary_.id_of(bytes_to_letters({&byte, 1})).value_or(-1);
    if (byte_ids_[b] < 0) raw_bytes_ = false;
  }
  if (!raw_bytes_) return;
  byte_pairs_.resize(256 * 256);
  for (std::size_t i = 0; i < byte_pairs_.size(); ++i) byte_pairs_[i] = rank_of(byte_ids_[i >> 8], byte_ids_[i & 255]);
  if (!options_.ignore_merges) return;
  std::string bytes;
  for (TokenId id = 0; id < vocabulary_.size(); ++id) {
    bytes.clear();
    if (vocabulary_.contains(id) && letters_to_bytes(vocabulary_.token(id), bytes)) raw_tokens_.emplace(bytes, id);
  }
}

// Finds the characters (of two or three bytes) that may be taken as their token from the start: merged by themselves
// their bytes give one token, and every merge that would join a part of them to a neighbour comes later than that.
void BpeModel::map_characters(const std::vector<BpeMerge>& merges) {
  // By id: the lowest rank of a merge with the token at its left and a character's beginning at its right, or with the
  // token at its right.
  std::vector<std::uint32_t> as_left(sides_.size(), PairTable::kNone), as_right(sides_.size(), PairTable::kNone);
  for (const BpeMerge& merge : merges) {
    const auto left = static_cast<std::size_t>(merge.left), right = static_cast<std::size_t>(merge.right);
    const std::string_view token = vocabulary_.token(merge.right);
    const int first = token.empty() ? -1 : letter_byte(decode_utf8(token, 0).code);
    if (!is_continuation(first)) as_left[left] = std::min(as_left[left], merge.rank);
    as_right[right] = std::min(as_right[right], merge.rank);
  }
  characters_.assign(0x10000, -1);
  std::string bytes;
  for (char32_t code = 0x80; code < 0x10000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    bytes.clear();
    append_utf8(bytes, code);
    characters_[code] = whole_character(bytes, as_left, as_right);
  }
}

TokenId BpeModel::whole_character(std::string_view bytes, const std::vector<std::uint32_t>& as_left,
                                  const std::vector<std::uint32_t>& as_right) const {
  std::array<TokenId, 3> ids{};
  std::size_t count = bytes.size();
  for (std::size_t i = 0; i < count; ++i) ids[i] = byte_ids_[static_cast<std::uint8_t>(bytes[i])];
  std::uint32_t highest = 0;  // rank of the merges that make the character
  while (count > 1) {
    const std::uint32_t first = rank_of(ids[0], ids[1]),
                        second = count > 2 ? rank_of(ids[1], ids[2]) : PairTable::kNone;
    const std::uint32_t best = std::min(first, second);
    if (best == PairTable::kNone) return -1;
    ids[first <= second ? 0 : 1] = results_[best];
    if (first <= second) ids[1] = ids[2];
    highest = std::max(highest, best);
    --count;
  }
  for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
    const auto head = vocabulary_.id_of(bytes_to_letters(bytes.substr(0, cut)));
    const auto tail = vocabulary_.id_of(bytes_to_letters(bytes.substr(cut)));
    if (head && as_right[static_cast<std::size_t>(*head)] <= highest) return -1;
    if (tail && as_left[static_cast<std::size_t>(*tail)] <= highest) return -1;
  }
  return ids[0];
}

// Whether cutting a piece before each ▁ that follows another character gives the same ids: true of vocabularies in the
// manner of SentencePiece, where a whole text is one piece.
bool BpeModel::can_cut_words(const std::vector<BpeMerge>& merges) const {
  if (options_.byte_level || options_.ignore_merges || !options_.continuing_subword_prefix.empty() ||
      !options_.end_of_word_suffix.empty() || !vocabulary_.id_of(kWordMark)) {
    return false;
  }
  return std::none_of(merges.begin(), merges.end(), [&](const BpeMerge& merge) {
    return vocabulary_.token(merge.right).starts_with(kWordMark) && !vocabulary_.token(merge.left).ends_with(kWordMark);
  });
}

void BpeModel::encode(std::string_view piece, std::vector<TokenId>& out) const {
  if (!cut_words_) return encode_word(piece, out);
  std::size_t start = 0;
  for (std::size_t at = piece.find(kWordMark, 1); at != std::string_view::npos; at = piece.find(kWordMark, at + 1)) {
    if (piece.substr(0, at).ends_with(kWordMark)) continue;
    encode_word(piece.substr(start, at - start), out);
    start = at;
  }
  encode_word(piece.substr(start), out);
}

void BpeModel::encode_word(std::string_view piece, std::vector<TokenId>& out) const {
  if (piece.empty()) return;
  if (raw_bytes_ && piece.size() == 1) {
    out.push_back(byte_ids_[static_cast<std::uint8_t>(piece[0])]);
    return;
  }
  if (!PieceCache::fits(piece)) return encode_uncached(piece, out);
  PieceCache& cache = PieceCache::of_thread(cache_key_);
  const std::uint64_t hash = PieceCache::hash(piece);
  if (const auto ids = cache.find(piece, hash); !ids.empty()) {
    out.insert(out.end(), ids.begin(), ids.end());
    return;
  }
  const std::size_t start = out.size();
  encode_uncached(piece, out);
  cache.put(piece, hash, std::span(out).subspan(start));
}

void BpeModel::encode_uncached(std::string_view piece, std::vector<TokenId>& out) const {
  if (piece.size() >= PairTable::kNone) throw data_error("a piece of text without a place to cut is longer than 4 GiB");
  if (raw_bytes_) {
    if (options_.ignore_merges) {
      if (const auto whole = raw_tokens_.find(piece); whole != raw_tokens_.end()) return out.push_back(whole->second);
    }
    return merge_bytes(piece, out);
  }
  std::string letters;
  if (options_.byte_level) {
    letters = bytes_to_letters(piece);
    piece = letters;
  }
  if (options_.ignore_merges) {
    if (const auto whole = vocabulary_.id_of(piece)) return out.push_back(*whole);
  }
  std::vector<TokenId> symbols;
  encode_characters(piece, symbols);
  merge(symbols, out);
}

// The piece's characters as tokens. Unknown ones: their bytes, else the unk token (one for a run of them, if fused).
void BpeModel::encode_characters(std::string_view piece, std::vector<TokenId>& symbols) const {
  symbols.reserve(piece.size());
  std::string buffer;
  bool pending_unk = false;
  for (std::size_t at = 0; at < piece.size();) {
    const CodePoint c = decode_utf8(piece, at);
    std::string_view character = piece.substr(at, c.length);
    const bool first = at == 0, last = at + c.length == piece.size();
    at += c.length;
    if (!c.valid && !options_.byte_fallback) character = "\xEF\xBF\xBD";
    if (const auto id = find_symbol(character, first, last, buffer)) {
      if (pending_unk) symbols.push_back(*unk_id_);
      pending_unk = false;
      symbols.push_back(*id);
      continue;
    }
    if (options_.byte_fallback && add_byte_fallback(buffer, symbols)) continue;
    if (!unk_id_) {
      throw data_error(fmt::format("the vocabulary has no token for {}{}", describe(character),
                                   options_.unk_token
                                       ? fmt::format(" and none for its unk_token '{}'", *options_.unk_token)
                                       : std::string(", and the tokenizer has no unk_token")));
    }
    if (pending_unk && !options_.fuse_unk) symbols.push_back(*unk_id_);
    pending_unk = true;
  }
  if (pending_unk) symbols.push_back(*unk_id_);
}

// `buffer` receives the written form that was looked up.
std::optional<TokenId> BpeModel::find_symbol(std::string_view character, bool first, bool last,
                                             std::string& buffer) const {
  buffer.clear();
  if (!first) buffer += options_.continuing_subword_prefix;
  buffer += character;
  if (last) buffer += options_.end_of_word_suffix;
  return vocabulary_.id_of(buffer);
}

bool BpeModel::add_byte_fallback(std::string_view symbol, std::vector<TokenId>& symbols) const {
  const auto id_of = [&](char c) { return fallback_ids_[static_cast<std::uint8_t>(c)]; };
  if (std::any_of(symbol.begin(), symbol.end(), [&](char c) { return id_of(c) < 0; })) return false;
  for (const char c : symbol) symbols.push_back(id_of(c));
  return true;
}

// The piece as tokens to start from, into `ids` with room for all its bytes; their number.
std::size_t BpeModel::first_symbols(std::string_view piece, TokenId* ids) const {
  std::size_t count = 0;
  for (std::size_t at = 0; at < piece.size();) {
    const auto byte = static_cast<std::uint8_t>(piece[at]);
    if (byte >= 0xC2) {
      const CodePoint c = decode_utf8(piece, at);
      const std::size_t end = at + c.length;
      // An invalid continuation byte behind it might be merged first.
      const bool clean = end == piece.size() || !is_continuation(static_cast<std::uint8_t>(piece[end]));
      if (c.valid && c.code < characters_.size() && characters_[c.code] >= 0 && clean) {
        ids[count++] = characters_[c.code];
        at = end;
        continue;
      }
    }
    ids[count++] = byte_ids_[byte];
    ++at;
  }
  return count;
}

void BpeModel::merge_bytes(std::string_view piece, std::vector<TokenId>& out) const {
  if (piece.size() > kShortPiece) {
    std::vector<TokenId> symbols(piece.size());
    symbols.resize(first_symbols(piece, symbols.data()));
    return merge(symbols, out);
  }
  std::array<TokenId, kShortPiece> ids;
  std::array<std::uint32_t, kShortPiece> ranks;
  std::size_t count = first_symbols(piece, ids.data());
  if (count == piece.size()) {
    for (std::size_t i = 0; i + 1 < count; ++i) {
      ranks[i] =
          byte_pairs_[std::size_t{static_cast<std::uint8_t>(piece[i])} << 8 | static_cast<std::uint8_t>(piece[i + 1])];
    }
  } else {
    for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_of(ids[i], ids[i + 1]);
  }
  count = merge_short(ids.data(), ranks.data(), count);
  out.insert(out.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
}

void BpeModel::merge(std::vector<TokenId>& symbols, std::vector<TokenId>& out) const {
  if (symbols.size() > kShortPiece) return merge_long(symbols, out);
  std::array<std::uint32_t, kShortPiece> ranks;
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) ranks[i] = rank_of(symbols[i], symbols[i + 1]);
  const std::size_t count = merge_short(symbols.data(), ranks.data(), symbols.size());
  out.insert(out.end(), symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(count));
}

// Merges in place, looking through all pairs each time: quickest for few symbols. ranks[i] is that of ids[i], ids[i+1].
std::size_t BpeModel::merge_short(TokenId* ids, std::uint32_t* ranks, std::size_t count) const {
  while (count > 1) {
    // Two passes: the first is one that compilers turn into vector instructions.
    std::uint32_t best = PairTable::kNone;
    for (std::size_t i = 0; i + 1 < count; ++i) best = std::min(best, ranks[i]);
    if (best == PairTable::kNone) break;
    std::size_t at = 0;
    while (ranks[at] != best) ++at;
    ids[at] = results_[best];
    std::memmove(ids + at + 1, ids + at + 2, (count - at - 2) * sizeof(TokenId));
    if (at + 2 < count) std::memmove(ranks + at, ranks + at + 1, (count - at - 2) * sizeof(std::uint32_t));
    --count;
    if (at + 1 < count) ranks[at] = rank_of(ids[at], ids[at + 1]);
    if (at > 0) ranks[at - 1] = rank_of(ids[at - 1], ids[at]);
  }
  return count;
}

// Merges with a heap of (rank, position) over a linked list of symbols: n log n for a piece of n symbols.
void BpeModel::merge_long(const std::vector<TokenId>& symbols, std::vector<TokenId>& out) const {
  const auto n = static_cast<std::uint32_t>(symbols.size());
  std::vector<TokenId> ids = symbols;
  std::vector<std::uint32_t> next(n), previous(n), ranks(n, PairTable::kNone);
  std::vector<std::uint64_t> heap;
  const auto rank_at = [&](std::uint32_t i) {
    ranks[i] = next[i] < n ? rank_of(ids[i], ids[next[i]]) : PairTable::kNone;
    return ranks[i] != PairTable::kNone;
  };
  const auto entry = [&](std::uint32_t i) { return std::uint64_t{ranks[i]} << 32 | i; };
  for (std::uint32_t i = 0; i < n; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;  // the first has none: 0xFFFFFFFF
    if (rank_at(i)) heap.push_back(entry(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>{});
  const auto push = [&](std::uint32_t i) {
    if (!rank_at(i)) return;
    heap.push_back(entry(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>{});
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>{});
    const auto rank = static_cast<std::uint32_t>(heap.back() >> 32), at = static_cast<std::uint32_t>(heap.back());
    heap.pop_back();
    if (ranks[at] != rank) continue;  // the pair has changed since
    const std::uint32_t right = next[at];
    ids[at] = results_[rank];
    ranks[right] = PairTable::kNone;
    next[at] = next[right];
    if (next[at] < n) previous[next[at]] = at;
    push(at);
    if (at > 0) push(previous[at]);
  }
  for (std::uint32_t i = 0; i < n; i = next[i]) out.push_back(ids[i]);
}

}  // namespace convoy
