#include "text/unicode.h"

#include <gtest/gtest.h>

#include "text/normalizer.h"

#include <nlohmann/json.hpp>

namespace convoy {
namespace {

std::string utf8(char32_t code) {
  std::string out;
  append_utf8(out, code);
  return out;
}

TEST(Unicode, ClassesOfKnownCharacters) {
  using namespace char_class;
  const UnicodeTable& table = UnicodeTable::get();
  EXPECT_STREQ(kUnicodeVersion, "16.0.0");
  EXPECT_EQ(UnicodeTable::category(table[U'A']), Category::kLu);
  EXPECT_EQ(UnicodeTable::category(table[U'ſ']), Category::kLl);
  EXPECT_EQ(UnicodeTable::category(table[U'_']), Category::kPc);
  EXPECT_EQ(UnicodeTable::category(table[0x10FFFF]), Category::kCn);
  EXPECT_EQ(UnicodeTable::category(table[0x10D50]), Category::kLu);  // Garay, new in Unicode 16
  EXPECT_TRUE(table[U'中'] & kLetter);
  EXPECT_TRUE(table[U'½'] & kNumber);
  EXPECT_FALSE(table[U'½'] & kWord);
  EXPECT_TRUE(table[U'Ⓐ'] & kWord);
  EXPECT_TRUE(table[0x3000] & kSpace);
  EXPECT_FALSE(table[0x200B] & kSpace);
  EXPECT_FALSE(table[0x180E] & kSpace);
  EXPECT_TRUE(table[U'e'] & kStableNfc);
  EXPECT_FALSE(table[0x301] & kStableNfc);
  EXPECT_FALSE(table[0x1161] & kStableNfc);  // joins the Hangul syllable before
  EXPECT_FALSE(table[U'é'] & kStableNfd);
}

TEST(Unicode, EveryCharacterSurvivesUtf8) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    const std::string text = utf8(code);
    const CodePoint c = decode_utf8(text, 0);
    ASSERT_TRUE(c.valid && c.code == code && c.length == text.size()) << static_cast<unsigned>(code);
    ASSERT_EQ(find_invalid_utf8(text), std::string::npos);
    ASSERT_EQ(incomplete_tail(text), 0u);
    for (std::size_t n = 1; n < text.size(); ++n) {
      ASSERT_EQ(incomplete_tail(text.substr(0, n)), n);
      ASSERT_EQ(to_valid_utf8(text.substr(0, n)), "\uFFFD");
    }
  }
}

TEST(Unicode, InvalidPartsBecomeOneReplacementEach) {
  EXPECT_EQ(to_valid_utf8("a\xFF"
                          "b"),
            "a\uFFFDb");
  EXPECT_EQ(to_valid_utf8("\xE4\xBD"
                          "x"),
            "\uFFFDx");                                            // a beginning, cut short
  EXPECT_EQ(to_valid_utf8("\x80\x80"), "\uFFFD\uFFFD");            // no beginning
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(to_valid_utf8("\xC0\xAF"), "\uFFFD\uFFFD");            // an overlong form
  EXPECT_EQ(to_valid_utf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\x98\xF0\x9F\x98\x80"), "\uFFFD😀");
  EXPECT_EQ(incomplete_tail("ab\xE4\xBD"), 2u);
  EXPECT_EQ(incomplete_tail("\xED\xA0"), 0u);
  EXPECT_EQ(incomplete_tail(""), 0u);
  EXPECT_EQ(find_invalid_utf8("12345678\xC3"), 8u);
}

TEST(Unicode, ByteAlphabetIsABijection) {
  std::string all;
  for (unsigned b = 0; b < 256; ++b) {
    EXPECT_EQ(letter_byte(byte_letter(static_cast<std::uint8_t>(b))), static_cast<int>(b));
    all += static_cast<char>(b);
  }
  EXPECT_EQ(byte_letter(' '), U'Ġ');
  EXPECT_EQ(byte_letter('\n'), U'Ċ');
  EXPECT_EQ(byte_letter(0xAD), char32_t{0x143});
  EXPECT_EQ(letter_byte(U'中'), -1);
  std::string back;
  EXPECT_TRUE(letters_to_bytes(bytes_to_letters(all), back));
  EXPECT_EQ(back, all);
  EXPECT_FALSE(letters_to_bytes("a b", back));
  EXPECT_EQ(back, all);
}

std::string normalize(const Json& json, std::string text) {
  for (const auto& normalizer : read_normalizers(json)) normalizer->apply(text);
  return text;
}

TEST(Normalizers, FormsOfKnownTexts) {
  const Json nfc{{"type", "NFC"}}, nfd{{"type", "NFD"}}, nfkc{{"type", "NFKC"}}, nfkd{{"type", "NFKD"}};
  EXPECT_EQ(normalize(nfc, "xe\u0301y e\u0302\u0301"), "x\u00E9y \u1EBF");
  EXPECT_EQ(normalize(nfc, "\u1100\u1161\u11A8 \u212B"), "\uAC01 \u00C5");
  EXPECT_EQ(normalize(nfc, "q\u0307\u0323"), "q\u0323\u0307");  // canonical order
  EXPECT_EQ(normalize(nfd, "\u00E9\uAC01"), "e\u0301\u1100\u1161\u11A8");
  EXPECT_EQ(normalize(nfkc, "ﬁ ² ﾊﾟ"), "fi 2 パ");
  EXPECT_EQ(normalize(nfkd, "ﬁé"), "fie\u0301");
  EXPECT_EQ(normalize(nfc, "e\xFF\u0301\xC3"), "e\xFF\u0301\xC3");  // invalid bytes stay, and nothing joins over them
  EXPECT_EQ(normalize(nfc, std::string("a\0e\u0301", 5)), std::string("a\0\u00E9", 4));
}

// The parts-only way must equal normalizing the text as a whole: checked by going through other forms.
TEST(Normalizers, FormsAgreeWithEachOther) {
  const Json nfc{{"type", "NFC"}}, nfd{{"type", "NFD"}};
  std::string text;
  for (char32_t code = 0xA0; code < 0x3100; ++code) {
    text += utf8(code);
    if (code % 3 == 0) text += utf8(0x300 + code % 0x50);
  }
  const std::string composed = normalize(nfc, text), decomposed = normalize(nfd, text);
  EXPECT_NE(composed, decomposed);
  EXPECT_EQ(normalize(nfc, decomposed), composed);
  EXPECT_EQ(normalize(nfd, composed), decomposed);
  EXPECT_EQ(normalize(nfc, composed), composed);
}

TEST(Normalizers, OtherKinds) {
  EXPECT_EQ(normalize({{"type", "Lowercase"}}, "ÀΣİǅ"), "àσi\u0307ǆ");
  EXPECT_EQ(normalize({{"type", "Strip"}}, " \u3000 a b\n"), "a b");
  EXPECT_EQ(normalize({{"type", "Strip"}, {"strip_left", false}}, " a "), " a");
  EXPECT_EQ(normalize({{"type", "Strip"}, {"strip_right", false}}, " \t"), "");
  EXPECT_EQ(normalize({{"type", "Prepend"}, {"prepend", "▁"}}, ""), "");
  EXPECT_EQ(normalize({{"type", "Prepend"}, {"prepend", "▁"}}, "a"), "▁a");
  EXPECT_EQ(normalize({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", "_"}}, "a  b   c d"),
            "a_b_c d");
  EXPECT_EQ(normalize({{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "_"}}, "ab"), "ab");
  EXPECT_EQ(normalize({{"type", "StripAccents"}}, "e\u0301a"), "ea");
  EXPECT_EQ(normalize({{"type", "BertNormalizer"}}, "Ça\t中\u200Bx\x01"), "ca  中 x");
}

}  // namespace
}  // namespace convoy
