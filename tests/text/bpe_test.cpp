#include "text/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "base/error.h"
#include "base/random.h"
#include "text/piece_cache.h"
#include "text/unicode.h"

namespace convoy {
namespace {

using Ids = std::vector<TokenId>;

// The definition, without any cleverness.
Ids merge_plainly(Ids ids, const std::vector<BpeMerge>& merges) {
  std::map<std::pair<TokenId, TokenId>, BpeMerge> by_pair;
  for (const BpeMerge& merge : merges) by_pair[{merge.left, merge.right}] = merge;
  while (true) {
    const BpeMerge* best = nullptr;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = by_pair.find({ids[i], ids[i + 1]});
      if (found != by_pair.end() && (best == nullptr || found->second.rank < best->rank)) {
        best = &found->second;
        at = i;
      }
    }
    if (best == nullptr) return ids;
    ids[at] = best->result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

struct RandomModel {
  Vocabulary vocabulary;
  std::vector<BpeMerge> merges;
};

// A byte-level vocabulary whose merges join random tokens that lie side by side in `text`.
RandomModel random_model(RandomStream& random, const std::string& text, int count) {
  RandomModel out;
  for (unsigned b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    out.vocabulary.add(bytes_to_letters({&byte, 1}), b);
  }
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<std::uint8_t>(c));
  for (int i = 0; i < count; ++i) {
    const std::size_t at = random.below(ids.size() - 1);
    const std::string token =
        std::string(out.vocabulary.token(ids[at])) + std::string(out.vocabulary.token(ids[at + 1]));
    auto id = out.vocabulary.id_of(token);
    if (!id) {
      id = static_cast<TokenId>(out.vocabulary.size());
      out.vocabulary.add(token, *id);
    }
    const auto same = [&](const BpeMerge& m) { return m.left == ids[at] && m.right == ids[at + 1]; };
    if (std::any_of(out.merges.begin(), out.merges.end(), same)) continue;
    out.merges.push_back({ids[at], ids[at + 1], static_cast<std::uint32_t>(out.merges.size()), *id});
    if (random.below(2) == 0) ids = merge_plainly(ids, out.merges);
    if (ids.size() < 2) break;
  }
  return out;
}

TEST(Bpe, MergesAsDefined) {
  RandomStream random(3, 0);
  const std::string words[] = {"中", "国", "文", "的", "é",    "ß",    "а",        "б",
                               "a",  "b",  " ",  "e",  "\xFF", "\xB8", "\xE4\xB8", "😀"};
  for (int model_number = 0; model_number < 40; ++model_number) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += words[random.below(std::size(words))];
    const RandomModel parts = random_model(random, text, 120);
    BpeOptions options;
    options.byte_level = true;
    const BpeModel model(parts.vocabulary, parts.merges, options);
    for (int round = 0; round < 60; ++round) {
      std::string piece;
      const std::uint64_t length = random.below(10) == 0 ? 200 : 1 + random.below(20);  // long ones go through the heap
      for (std::uint64_t i = 0; i < length; ++i) piece += words[random.below(std::size(words))];
      Ids start, ids;
      for (const char c : piece) start.push_back(static_cast<std::uint8_t>(c));
      model.encode(piece, ids);
      ASSERT_EQ(ids, merge_plainly(start, parts.merges)) << piece;
      ids.clear();
      model.encode(piece, ids);  // now perhaps from the cache
      ASSERT_EQ(ids, merge_plainly(start, parts.merges));
    }
  }
}

Vocabulary vocabulary_of(std::initializer_list<const char*> tokens) {
  Vocabulary out;
  for (const char* token : tokens) out.add(token, out.size());
  return out;
}

Ids encode(const BpeModel& model, std::string_view text) {
  Ids ids;
  model.encode(text, ids);
  return ids;
}

TEST(Bpe, UnknownCharacters) {
  BpeOptions options;
  const auto tokens = {"<unk>", "a", "b", "ab", "<0xC3>", "<0xA9>"};
  const std::vector<BpeMerge> merges{{1, 2, 0, 3}};
  options.unk_token = "<unk>";
  EXPECT_EQ(encode(BpeModel(vocabulary_of(tokens), merges, options), "abxyab"), (Ids{3, 0, 0, 3}));
  options.fuse_unk = true;
  EXPECT_EQ(encode(BpeModel(vocabulary_of(tokens), merges, options), "abxyab"), (Ids{3, 0, 3}));
  options.byte_fallback = true;
  EXPECT_EQ(encode(BpeModel(vocabulary_of(tokens), merges, options), "aéx"), (Ids{1, 4, 5, 0}));
  EXPECT_EQ(encode(BpeModel(vocabulary_of(tokens), merges, options), "\xC3"), (Ids{4}));  // an invalid byte, as a byte
  options = {};
  try {
    encode(BpeModel(vocabulary_of(tokens), merges, options), "abx");
    FAIL();
  } catch (const Error& failure) {
    EXPECT_EQ(failure.status(), Status::kData);
    EXPECT_STREQ(failure.what(), "the vocabulary has no token for 'x' (U+0078), and the tokenizer has no unk_token");
  }
  options.unk_token = "[UNK]";
  EXPECT_THROW(encode(BpeModel(vocabulary_of(tokens), merges, options), "x"), Error);
}

TEST(Bpe, PrefixesSuffixesAndWholeTokens) {
  BpeOptions options;
  options.end_of_word_suffix = "</w>";
  options.unk_token = "u";
  EXPECT_EQ(encode(BpeModel(vocabulary_of({"u", "a", "a</w>", "aa</w>"}), {{1, 2, 0, 3}}, options), "aa"), Ids{3});
  options = {};
  options.ignore_merges = true;
  EXPECT_EQ(encode(BpeModel(vocabulary_of({"a", "b", "ab", "aba"}), {}, options), "aba"), Ids{3});
  EXPECT_EQ(encode(BpeModel(vocabulary_of({"a", "b", "ab", "aba"}), {{0, 1, 0, 2}}, options), "abab"), (Ids{2, 2}));
}

TEST(Bpe, CutsAtWordMarksWithoutChangingAnything) {
  const auto tokens = {"▁", "a", "b", "▁a", "▁▁", "ab", "▁ab"};
  const std::vector<BpeMerge> merges{{0, 0, 0, 4}, {1, 2, 1, 5}, {0, 5, 2, 6}, {0, 1, 3, 3}};
  const BpeModel model(vocabulary_of(tokens), merges, {});
  RandomStream random(5, 0);
  const char* letters[] = {"▁", "a", "b"};
  for (int round = 0; round < 500; ++round) {
    Ids start;
    std::string text;
    for (std::uint64_t i = random.below(12); i > 0; --i) {
      start.push_back(static_cast<TokenId>(random.below(3)));
      text += letters[start.back()];
    }
    ASSERT_EQ(encode(model, text), merge_plainly(start, merges)) << text;
  }
}

TEST(Bpe, AMegabyteWithoutSpacesTakesNoMinutes) {
  Vocabulary vocabulary;
  std::vector<BpeMerge> merges;
  for (unsigned b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    vocabulary.add(bytes_to_letters({&byte, 1}), b);
  }
  std::string token = "a";
  TokenId last = 'a';
  for (std::uint32_t rank = 0; rank < 8; ++rank) {
    token += token;
    const auto id = static_cast<TokenId>(vocabulary.size());
    vocabulary.add(token, id);
    merges.push_back({last, last, rank, id});
    last = id;
  }
  BpeOptions options;
  options.byte_level = true;
  const BpeModel model(std::move(vocabulary), merges, options);
  const auto start = std::chrono::steady_clock::now();
  const Ids ids = encode(model, std::string(1 << 20, 'a'));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(ids, Ids((1 << 20) / 256, last));
}

TEST(Vocabulary, RefusesWhatIsNotAVocabulary) {
  Vocabulary vocabulary;
  vocabulary.add("a", 5);
  EXPECT_EQ(vocabulary.size(), 6);
  EXPECT_FALSE(vocabulary.contains(0));
  EXPECT_THROW(vocabulary.add("b", 5), Error);
  EXPECT_THROW(vocabulary.add("a", 6), Error);
  EXPECT_THROW(vocabulary.add("c", -1), Error);
  EXPECT_THROW(vocabulary.add("c", std::int64_t{1} << 40), Error);
  EXPECT_EQ(vocabulary.count(), 1u);
}

TEST(PieceCache, TellsPiecesApart) {
  PieceCache& cache = PieceCache::of_thread(1u << 30);
  const Ids one{1}, two{2, 3};
  for (const std::string piece : {"a", "ab", "abc", "abcdefgh", "abcdefghijklmnopqrstuvwxyz"}) {
    const std::uint64_t hash = PieceCache::hash(piece);
    EXPECT_TRUE(cache.find(piece, hash).empty());
    cache.put(piece, hash, two);
    EXPECT_THAT(cache.find(piece, hash), testing::ElementsAre(2, 3));
    cache.put(piece, hash, one);
    EXPECT_THAT(cache.find(piece, hash), testing::ElementsAre(1));
  }
  EXPECT_TRUE(PieceCache::of_thread((1u << 30) + 1).find("a", PieceCache::hash("a")).empty());
  EXPECT_FALSE(PieceCache::fits(std::string(27, 'x')));
}

}  // namespace
}  // namespace convoy
