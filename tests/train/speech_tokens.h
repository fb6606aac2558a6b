// A tokenizer of bytes with the special tokens of Whisper and GLM-ASR, and times up to a second.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "../data/byte_tokenizer.h"

namespace convoy::testing {

inline const std::vector<std::string>& specials() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> made = {"<|endoftext|>",      "<|startoftranscript|>", "<|en|>",   "<|zh|>",
                                     "<|transcribe|>",     "<|notimestamps|>",      "<|user|>", "<|assistant|>",
                                     "<|begin_of_audio|>", "<|end_of_audio|>",      "<|pad|>"};
    for (int i = 0; i <= 50; ++i) made.push_back(fmt::format("<|{:.2f}|>", 0.02 * i));
    made.insert(made.end(), {"<|nospeech|>", "<|startofprev|>"});
    return made;
  }();
  return all;
}

inline const ByteTokenizer& tokenizer() {
  static const ByteTokenizer one(specials(), "<|endoftext|>");
  return one;
}
inline TokenId id(const std::string& token) {
  return tokenizer().token_to_id(token).value();
}
inline TokenId at(double seconds) {
  return id(fmt::format("<|{:.2f}|>", seconds));
}

}  // namespace convoy::testing
