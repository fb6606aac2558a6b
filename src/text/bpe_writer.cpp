// The files of a trained tokenizer.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "text/bpe_trainer.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"

namespace convoy {
namespace {

Json added_token(const std::string& content) {
  return {{"content", content}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false},    {"normalized", false},  {"special", true}};
}

std::string quoted(const std::string& text) {
  return Json(text).dump();
}

// Written by hand: a JSON object that keeps its order takes quadratic time for a vocabulary.
std::string model_text(const TrainedBpe& trained) {
  std::vector<std::string> letters;
  letters.reserve(trained.tokens.size());
  for (const std::string& token : trained.tokens) letters.push_back(quoted(bytes_to_letters(token)));
  std::string out =
      "{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
      "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {";
  for (std::size_t id = 0; id < letters.size(); ++id) {
    out += fmt::format("{}\n      {}: {}", id == 0 ? "" : ",", letters[id], id);
  }
  out += "\n    },\n    \"merges\": [";
  bool first = true;
  for (const auto& [left, right] : trained.merges) {
    out += fmt::format("{}\n      [{}, {}]", first ? "" : ",", letters[static_cast<std::size_t>(left)],
                       letters[static_cast<std::size_t>(right)]);
    first = false;
  }
  return out + "\n    ]\n  }";
}

std::string tokenizer_text(const TrainedBpe& trained, const BpeTrainerOptions& options) {
  Json added = Json::array();
  for (const std::string& content : options.special_tokens) {
    Json token = {{"id", trained.tokens.size() + added.size()}};
    token.update(added_token(content));
    added.push_back(std::move(token));
  }
  const Json head = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", options.pattern == SplitPattern::kQwen2 ? Json{{"type", "NFC"}} : Json()},
      {"pre_tokenizer", byte_level_section(options.pattern)},
      {"post_processor", nullptr},
      {"decoder", byte_level_section(SplitPattern::kGpt2)},
  };
  std::string out = dump_json(head);
  out.resize(out.rfind('}'));
  while (out.back() == '\n') out.pop_back();
  return out + ",\n  \"model\": " + model_text(trained) + "\n}\n";
}

std::string config_text(const TrainedBpe& trained, const BpeTrainerOptions& options) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  std::optional<std::string> eos = options.eos_token;
  const std::string usual = "<|endoftext|>";
  const auto& names = options.special_tokens;
  if (!eos && std::find(names.begin(), names.end(), usual) != names.end()) eos = usual;
  if (options.bos_token) config["bos_token"] = *options.bos_token;
  if (eos) config["eos_token"] = *eos;
  if (options.pad_token) config["pad_token"] = *options.pad_token;
  Json decoder = Json::object();
  for (std::size_t i = 0; i < names.size(); ++i)
    decoder[std::to_string(trained.tokens.size() + i)] = added_token(names[i]);
  config["added_tokens_decoder"] = std::move(decoder);
  return dump_json(config);
}

}  // namespace

void write_tokenizer(const TrainedBpe& trained, const BpeTrainerOptions& options, const std::filesystem::path& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw storage_error("cannot make the folder: " + failure.message()).at(folder.string());
  write_file_atomic(folder / "tokenizer.json", tokenizer_text(trained, options));
  write_file_atomic(folder / "tokenizer_config.json", config_text(trained, options));
}

}  // namespace convoy
