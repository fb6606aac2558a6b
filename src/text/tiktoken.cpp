#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "text/split_pattern.h"
#include "text/tokenizer_files.h"
#include "text/unicode.h"

namespace convoy {
namespace {

constexpr std::size_t kGlm4Ranks = 151329, kLlama3Ranks = 128000;
constexpr std::array<const char*, 14> kGlm4Specials{"<|endoftext|>",
                                                    "[MASK]",
                                                    "[gMASK]",
                                                    "[sMASK]",
                                                    "<sop>",
                                                    "<eop>",
                                                    "<|system|>",
                                                    "<|user|>",
                                                    "<|assistant|>",
                                                    "<|observation|>",
                                                    "<|begin_of_image|>",
                                                    "<|end_of_image|>",
                                                    "<|begin_of_video|>",
                                                    "<|end_of_video|>"};

struct RankedToken {
  std::string bytes;
  std::int64_t rank;
};

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

// Standard alphabet with padding (RFC 4648); false if it is not that.
bool decode_base64(std::string_view text, std::string& out) {
  if (text.empty() || text.size() % 4 != 0) return false;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      const bool pad = i + k >= text.size() - padding;
      const int digit = pad ? 0 : base64_digit(text[i + k]);
      if (digit < 0) return false;
      bits = bits << 6 | static_cast<std::uint32_t>(digit);
    }
    for (const unsigned shift : {16u, 8u, 0u}) out += static_cast<char>(bits >> shift & 255u);
  }
  out.resize(out.size() - padding);
  return true;
}

bool parse_line(std::string_view line, RankedToken& token) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) return false;
  token.bytes.clear();
  const char* end = line.data() + line.size();
  const auto [stop, failed] = std::from_chars(line.data() + space + 1, end, token.rank);
  return failed == std::errc() && stop == end && token.rank >= 0 && decode_base64(line.substr(0, space), token.bytes);
}

// The next line without its end; advances `text`.
std::string_view take_line(std::string_view& text) {
  std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

Vocabulary read_ranks(std::string_view text) {
  Vocabulary vocabulary;
  RankedToken token;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (line.empty()) continue;
    try {
      if (!parse_line(line, token)) throw data_error("a line is not \"base64(bytes) rank\"");
      vocabulary.add(bytes_to_letters(token.bytes), token.rank);
    } catch (Error& failure) {
      throw failure.at(fmt::format("line {}", number));
    }
  }
  return vocabulary;
}

// Two tokens merge if their bytes are a token; its rank is the merge's. Tokens are written in letters, one a byte.
std::vector<BpeMerge> merges_of(const Vocabulary& vocabulary) {
  std::vector<BpeMerge> merges;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary.contains(id)) continue;
    const std::string_view token = vocabulary.token(id);
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      if ((static_cast<std::uint8_t>(token[cut]) & 0xC0) == 0x80) continue;
      const auto left = vocabulary.id_of(token.substr(0, cut));
      const auto right = left ? vocabulary.id_of(token.substr(cut)) : std::nullopt;
      if (right) merges.push_back({*left, *right, static_cast<std::uint32_t>(id), id});
    }
  }
  return merges;
}

AddedToken special_token(std::string content, TokenId id) {
  AddedToken token{std::move(content), id};
  token.special = true;
  return token;
}

TokenId add_special(BpeTokenizerParts& parts, const TokenizerConfig& config, std::string content, TokenId id) {
  // A newer file may have given a reserved id a name.
  const auto named = std::find_if(config.added_tokens.begin(), config.added_tokens.end(),
                                  [&](const AddedToken& token) { return token.id == id; });
  if (named != config.added_tokens.end() && named->content != content) {
    parts.aliases.emplace_back(content, id);
    content = named->content;
  }
  parts.added_tokens.push_back(special_token(std::move(content), id));
  return id;
}

void add_glm4(BpeTokenizerParts& parts, const TokenizerConfig& config, TokenId first) {
  for (std::size_t i = 0; i < kGlm4Specials.size(); ++i) {
    add_special(parts, config, kGlm4Specials[i], first + static_cast<TokenId>(i));
  }
  parts.eos = first;
  parts.post_processor.before = {first + 2, first + 4};  // [gMASK] <sop>
}

// 256 special tokens. Llama 3.1 gave some reserved ones a name; both names find them.
void add_llama3(BpeTokenizerParts& parts, const TokenizerConfig& config, TokenId first) {
  constexpr std::array<const char*, 10> kNames{
      "<|begin_of_text|>",   "<|end_of_text|>",   nullptr, nullptr,     nullptr, nullptr,
      "<|start_header_id|>", "<|end_header_id|>", nullptr, "<|eot_id|>"};
  int reserved = 0;
  for (TokenId i = 0; i < 256; ++i) {
    const char* name = i < 10 ? kNames[static_cast<std::size_t>(i)] : nullptr;
    add_special(parts, config, name != nullptr ? name : fmt::format("<|reserved_special_token_{}|>", reserved++),
                first + i);
  }
  parts.aliases.emplace_back("<|finetune_right_pad_id|>", first + 4);
  parts.aliases.emplace_back("<|eom_id|>", first + 8);
  parts.aliases.emplace_back("<|python_tag|>", first + 10);
  parts.bos = first;
  parts.eos = first + 1;
  parts.post_processor.before = {first};
}

void add_family(BpeTokenizerParts& parts, const TokenizerConfig& config, const Vocabulary& vocabulary) {
  const auto ranks = static_cast<TokenId>(vocabulary.size());
  const bool glm = config.tokenizer_class.starts_with("ChatGLM4Tokenizer");
  if (glm || vocabulary.count() == kGlm4Ranks) return add_glm4(parts, config, ranks);
  if (vocabulary.count() == kLlama3Ranks) return add_llama3(parts, config, ranks);
  if (config.added_tokens.empty()) {
    throw data_error(fmt::format("a tiktoken file of {} ranks is of no known family (GLM-4 has {}, Llama-3 {})",
                                 vocabulary.count(), kGlm4Ranks, kLlama3Ranks))
        .mend("put a tokenizer_config.json beside it that lists the special tokens in added_tokens_decoder");
  }
}

}  // namespace

bool is_tiktoken(std::string_view text) {
  RankedToken token;
  return parse_line(take_line(text), token);
}

BpeTokenizerParts read_tiktoken(std::string_view text, const std::string& name, const TokenizerConfig& config) {
  try {
    BpeTokenizerParts parts;
    Vocabulary vocabulary = read_ranks(text);
    add_family(parts, config, vocabulary);
    parts.pre_tokenizers = PreTokenizers::read(byte_level_section(SplitPattern::kCl100k));
    parts.decoder = Decoder::read(Json{{"type", "ByteLevel"}});
    const std::vector<BpeMerge> merges = merges_of(vocabulary);
    BpeOptions options;
    options.ignore_merges = true;
    options.byte_level = true;
    parts.model = std::make_unique<BpeModel>(std::move(vocabulary), merges, std::move(options));
    Hasher hasher;
    hasher.add("convoy-tiktoken-1:");
    hasher.add(text);
    for (const AddedToken& token : parts.added_tokens) hasher.add(fmt::format("{}={};", token.content, token.id));
    parts.fingerprint = hasher.value();
    return parts;
  } catch (Error& failure) {
    throw failure.at(name);
  }
}

}  // namespace convoy
