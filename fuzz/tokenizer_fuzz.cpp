// Reads a tokenizer.json and encodes a text with it. The input is the file, a line "----", and the text. Whatever it
// is, it must give ids or an Error; ids must decode, as a whole and one by one to the same text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/bpe_tokenizer.h"
#include "text/tokenizer_files.h"
#include "text/unicode.h"

namespace {

using namespace convoy;

void require(bool condition) {
  if (!condition) std::abort();
}

BpeTokenizerParts read(std::string_view file) {
  const TokenizerConfig config;
  if (is_tiktoken(file)) {
    TokenizerConfig glm;
    glm.tokenizer_class = "ChatGLM4Tokenizer";
    return read_tiktoken(file, "fuzz", glm);
  }
  BpeTokenizerParts parts = read_tokenizer_json(file, "fuzz");
  apply_config(parts, config);
  return parts;
}

void exercise(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool special : {false, true}) {
    std::vector<TokenId> ids;
    tokenizer.encode(text, {.add_special_tokens = special, .parse_special = special}, ids);
    for (const TokenId id : ids) {
      require(id >= 0 && id < tokenizer.vocab_size() && tokenizer.id_to_token(id).has_value());
      (void)tokenizer.token_bytes(id);
    }
    const std::string decoded = tokenizer.decode(ids, special);
    require(find_invalid_utf8(decoded) == std::string::npos);
    StreamingDecoder stream(tokenizer, special);
    for (const TokenId id : ids) require(find_invalid_utf8(stream.push(id)) == std::string::npos);
    require(find_invalid_utf8(stream.finish()) == std::string::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = input.find("\n----\n");
  const std::string_view file = input.substr(0, cut);
  const std::string_view text = cut == std::string_view::npos ? "a b\n1 é 中 <s>" : input.substr(cut + 6);
  try {
    const BpeTokenizer tokenizer(read(file));
    exercise(tokenizer, text);
  } catch (const Error&) {
    // What is expected of a bad file.
  }
  return 0;
}
