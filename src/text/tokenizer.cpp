#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "text/tokenizer_files.h"
#include "text/unicode.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Tokenizer> finish(BpeTokenizerParts parts, const TokenizerConfig& config, const fs::path& file) {
  try {
    apply_config(parts, config);
    return std::make_unique<BpeTokenizer>(std::move(parts));
  } catch (Error& failure) {
    throw failure.at(file.string());
  }
}

std::unique_ptr<Tokenizer> load_file(const fs::path& file, const TokenizerConfig& config) {
  const MappedFile mapped(file);
  const std::string_view text = mapped.text();
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (file.extension() == ".json" || (first != std::string_view::npos && text[first] == '{')) {
    return finish(read_tokenizer_json(text, file.string()), config, file);
  }
  if (is_tiktoken(text)) return finish(read_tiktoken(text, file.string(), config), config, file);
  return read_sentencepiece(text, file.string(), config);
}

// config.json's model_type says which published pipeline a vocab.json belongs to, where tokenizer_config.json does not.
std::string class_of_model(const fs::path& folder) {
  if (!fs::exists(folder / "config.json")) return "";
  const Json json = read_json(folder / "config.json");
  const auto found = json.is_object() ? json.find("model_type") : json.end();
  if (!json.is_object() || found == json.end() || !found->is_string()) return "";
  const auto type = found->get<std::string>();
  if (type == "gpt2") return "GPT2Tokenizer";
  if (type == "whisper") return "WhisperTokenizer";
  if (type == "qwen2" || type == "qwen3") return "Qwen2Tokenizer";
  return type == "openai-gpt" ? "OpenAIGPTTokenizer" : "";
}

std::unique_ptr<Tokenizer> load_folder(const fs::path& folder, TokenizerConfig config) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (fs::exists(folder / name)) return load_file(folder / name, config);
  }
  struct Names {
    const char *vocab, *merges, *tokenizer_class;
  };
  for (const Names& names : {Names{"vocab.json", "merges.txt", ""}, Names{"encoder.json", "vocab.bpe", "GPT2Tokenizer"},
                             Names{"encoder_bpe_40000.json", "vocab_40000.bpe", "OpenAIGPTTokenizer"}}) {
    const fs::path vocab = folder / names.vocab, merges = folder / names.merges;
    if (!fs::exists(vocab) || !fs::exists(merges)) continue;
    if (config.tokenizer_class.empty()) config.tokenizer_class = names.tokenizer_class;
    if (config.tokenizer_class.empty()) config.tokenizer_class = class_of_model(folder);
    return finish(read_vocab_and_merges(read_file(vocab), vocab.string(), read_file(merges), merges.string(), config),
                  config, vocab);
  }
  throw data_error("the folder has no tokenizer")
      .at(folder.string())
      .mend(
          "it needs a tokenizer.json, a tokenizer.model (SentencePiece or tiktoken) or a vocab.json with a merges.txt");
}

std::optional<TokenId> find_token(const BpeTokenizerParts& parts, const std::string& content) {
  for (const AddedToken& token : parts.added_tokens) {
    if (token.content == content) return token.id;
  }
  return parts.model->vocabulary().id_of(content);
}

// Whether `token` can be added under its id; warns if not.
bool can_add(const BpeTokenizerParts& parts, const AddedToken& token) {
  const auto in_model = parts.model->vocabulary().id_of(token.content);
  const bool taken = std::any_of(parts.added_tokens.begin(), parts.added_tokens.end(),
                                 [&](const AddedToken& other) { return other.id == token.id; });
  if (in_model ? *in_model == token.id && !taken : !taken && !parts.model->vocabulary().contains(token.id)) return true;
  log_warning("the added token '{}' of the configuration is left out: its id {} is another token's", token.content,
              token.id);
  return false;
}

}  // namespace

void apply_config(BpeTokenizerParts& parts, const TokenizerConfig& config) {
  const std::size_t own = parts.added_tokens.size();
  const auto is_added = [&](const std::string& content) {
    return std::any_of(parts.added_tokens.begin(), parts.added_tokens.end(),
                       [&](const AddedToken& token) { return token.content == content; });
  };
  for (const AddedToken& token : config.added_tokens) {
    if (!is_added(token.content) && can_add(parts, token)) parts.added_tokens.push_back(token);
  }
  for (const std::string& content : config.special_tokens) {
    if (content.empty() || is_added(content)) continue;
    const auto id = parts.model->vocabulary().id_of(content);
    if (!id) {
      log_warning("the special token '{}' of the configuration is not in the vocabulary", content);
      continue;
    }
    AddedToken token{content, *id};
    token.special = true;
    if (can_add(parts, token)) parts.added_tokens.push_back(std::move(token));
  }
  if (parts.added_tokens.size() > own) {
    Hasher hasher;
    hasher.add(hex64(parts.fingerprint));
    for (std::size_t i = own; i < parts.added_tokens.size(); ++i) {
      const AddedToken& t = parts.added_tokens[i];
      hasher.add(fmt::format("{}={},{}{}{}{}{};", t.content, t.id, t.special, t.normalized, t.lstrip, t.rstrip,
                             t.single_word));
    }
    parts.fingerprint = hasher.value();
  }
  const auto role = [&](const std::optional<std::string>& name, const std::optional<TokenId>& id,
                        std::optional<TokenId>& slot) {
    const auto named = name ? find_token(parts, *name) : std::nullopt;
    if (named) {
      slot = named;
    } else if (!slot) {
      slot = id;
    }
  };
  role(config.bos_token, config.bos_id, parts.bos);
  role(config.eos_token, config.eos_id, parts.eos);
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& path) {
  try {
    if (!fs::exists(path)) throw storage_error("there is no such file or folder").at(path.string());
    const fs::path folder = fs::is_directory(path) ? path : path.parent_path();
    const TokenizerConfig config = TokenizerConfig::read(folder.empty() ? fs::path(".") : folder);
    return fs::is_directory(path) ? load_folder(path, config) : load_file(path, config);
  } catch (const fs::filesystem_error& failure) {
    throw storage_error(failure.code().message()).at(failure.path1().string());
  }
}

std::string StreamingDecoder::push(TokenId id) {
  if (skip_special_ && tokenizer_.is_special(id)) return "";
  std::string added = tokenizer_.token_bytes(id);  // also refuses an id outside the vocabulary before it is kept
  ids_.push_back(id);
  std::string text = tokenizer_.decode(ids_, skip_special_);
  // An unfinished character at the end shows as one U+FFFD, three bytes.
  std::string tail;
  for (auto at = ids_.rbegin(); at != ids_.rend() && tail.size() < 4; ++at) tail.insert(0, tokenizer_.token_bytes(*at));
  const bool unfinished = incomplete_tail(tail) != 0;
  const std::size_t settled = text.size() - (unfinished ? std::min<std::size_t>(3, text.size()) : 0);
  std::string out = settled > emitted_ ? text.substr(emitted_, settled - emitted_) : "";
  if (unfinished) {
    emitted_ = std::max(emitted_, settled);
  } else {
    // The last token stays as the context of the next.
    ids_.assign(1, id);
    emitted_ = tokenizer_.decode(ids_, skip_special_).size();
  }
  return out;
}

std::string StreamingDecoder::finish() {
  const std::string text = tokenizer_.decode(ids_, skip_special_);
  std::string out = text.size() > emitted_ ? text.substr(emitted_) : "";
  ids_.clear();
  emitted_ = 0;
  return out;
}

}  // namespace convoy
