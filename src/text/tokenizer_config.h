// What the files beside a tokenizer say: tokenizer_config.json, special_tokens_map.json, added_tokens.json,
// generation_config.json.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "text/added_tokens.h"

namespace convoy {

struct TokenizerConfig {
  std::string tokenizer_class;           // "ChatGLM4Tokenizer"; empty if not said
  std::vector<AddedToken> added_tokens;  // added_tokens_decoder, and added_tokens.json
  std::optional<std::string> bos_token, eos_token, unk_token;
  std::vector<std::string> special_tokens;  // every token that plays a role (bos, eos, pad, …, additional ones)
  std::optional<TokenId> bos_id, eos_id;    // generation_config.json's, where no name is given
  std::optional<bool> add_bos_token, add_eos_token, legacy, add_prefix_space;

  // From `folder`; a missing file says nothing. Errors name the file and the key.
  static TokenizerConfig read(const std::filesystem::path& folder);
};

}  // namespace convoy
