#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "text/tokenizer_files.h"
#include "text/unicode.h"

namespace convoy {
namespace {

namespace dom = simdjson::dom;

// Changes when the same file would be encoded differently by a new version of this code.
constexpr std::string_view kEncodingVersion = "convoy-bpe-1:";

[[noreturn]] void invalid_json(const simdjson::padded_string& text, const char* reason) {
  // The fast parser does not say where; the slow one does.
  try {
    const nlohmann::json parsed = nlohmann::json::parse(std::string_view(text));
    static_cast<void>(parsed);
  } catch (const nlohmann::json::parse_error& failure) {
    const std::string_view before = std::string_view(text).substr(0, failure.byte == 0 ? 0 : failure.byte - 1);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    throw data_error(fmt::format("not valid JSON at line {}, byte {}: {}", line, failure.byte, reason));
  } catch (const nlohmann::json::exception&) {
    // Another complaint than about syntax: the reason below is as good.
  }
  throw data_error(fmt::format("not valid JSON: {}", reason));
}

// Parses; the document lives as long as the parser.
dom::object parse_object(dom::parser& parser, const simdjson::padded_string& text) {
  const auto parsed = parser.parse(text);
  if (parsed.error() != simdjson::SUCCESS) invalid_json(text, simdjson::error_message(parsed.error()));
  dom::object object;
  if (parsed.get_object().get(object) != simdjson::SUCCESS) throw data_error("must be a JSON object");
  return object;
}

std::string text_of(dom::element value, std::string_view key) {
  std::string_view text;
  if (value.get_string().get(text) != simdjson::SUCCESS) throw data_error(fmt::format("'{}' must be a string", key));
  return std::string(text);
}

bool flag_of(dom::element value, std::string_view key) {
  bool flag = false;
  if (value.get_bool().get(flag) != simdjson::SUCCESS) {
    throw data_error(fmt::format("'{}' must be true or false", key));
  }
  return flag;
}

std::int64_t integer_of(dom::element value, std::string_view key) {
  std::int64_t number = 0;
  if (value.get_int64().get(number) != simdjson::SUCCESS) throw data_error(fmt::format("'{}' must be an integer", key));
  return number;
}

Vocabulary read_vocabulary(dom::object object) {
  Vocabulary vocabulary;
  vocabulary.reserve(object.size());
  for (const auto& [token, id] : object) {
    std::int64_t number = 0;
    if (id.get_int64().get(number) != simdjson::SUCCESS) {
      throw data_error(fmt::format("the id of token '{}' is not an integer", token));
    }
    vocabulary.add(token, number);
  }
  return vocabulary;
}

// Collects merges by their written forms.
class MergeReader {
 public:
  MergeReader(const Vocabulary& vocabulary, std::size_t prefix_length)
      : vocabulary_(vocabulary), prefix_length_(prefix_length) {}

  void add(std::string_view left, std::string_view right) {
    if (right.size() < prefix_length_) {
      throw data_error(fmt::format("merge '{} {}' is shorter than the continuing_subword_prefix", left, right));
    }
    buffer_.assign(left);
    buffer_ += right.substr(prefix_length_);
    merges.push_back({id_of(left, left, right), id_of(right, left, right), static_cast<std::uint32_t>(merges.size()),
                      id_of(buffer_, left, right)});
  }
  // "left right"
  void add(std::string_view line) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      throw data_error(fmt::format("merge '{}' is not two tokens with a space between", line));
    }
    add(line.substr(0, space), line.substr(space + 1));
  }

  std::vector<BpeMerge> merges;

 private:
  TokenId id_of(std::string_view token, std::string_view left, std::string_view right) const {
    const auto id = vocabulary_.id_of(token);
    if (!id)
      throw data_error(fmt::format("merge '{} {}' needs the token '{}', which the vocab lacks", left, right, token));
    return *id;
  }
  const Vocabulary& vocabulary_;
  std::size_t prefix_length_;
  std::string buffer_;
};

std::vector<BpeMerge> read_merges(dom::array list, const Vocabulary& vocabulary, const BpeOptions& options) {
  MergeReader reader(vocabulary, options.continuing_subword_prefix.size());
  for (const dom::element item : list) {
    std::string_view line;
    dom::array pair;
    if (item.get_string().get(line) == simdjson::SUCCESS) {
      reader.add(line);
      continue;
    }
    std::string_view left, right;
    if (item.get_array().get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
        pair.at(0).get_string().get(left) != simdjson::SUCCESS ||
        pair.at(1).get_string().get(right) != simdjson::SUCCESS) {
      throw data_error("an entry of 'merges' is neither \"left right\" nor [\"left\", \"right\"]");
    }
    reader.add(left, right);
  }
  return std::move(reader.merges);
}

std::unique_ptr<const BpeModel> read_model(dom::object object, bool byte_level) {
  BpeOptions options;
  options.byte_level = byte_level;
  std::optional<dom::object> vocab;
  std::optional<dom::array> merges;
  std::string type = "BPE";  // old files do not say
  for (const auto& [key, value] : object) {
    if (key == "vocab" && value.is_object()) {
      vocab = value.get_object();
    } else if (key == "merges" && value.is_array()) {
      merges = value.get_array();
    } else if (key == "type") {
      type = text_of(value, key);
      if (type != "BPE") throw data_error(fmt::format("model '{}' is not supported, only 'BPE' is", type));
    } else if (value.is_null()) {
      continue;
    } else if (key == "unk_token") {
      options.unk_token = text_of(value, key);
    } else if (key == "continuing_subword_prefix") {
      options.continuing_subword_prefix = text_of(value, key);
    } else if (key == "end_of_word_suffix") {
      options.end_of_word_suffix = text_of(value, key);
    } else if (key == "fuse_unk") {
      options.fuse_unk = flag_of(value, key);
    } else if (key == "byte_fallback") {
      options.byte_fallback = flag_of(value, key);
    } else if (key == "ignore_merges") {
      options.ignore_merges = flag_of(value, key);
    } else if (key == "dropout") {
      double dropout = 1;
      if (value.get_double().get(dropout) != simdjson::SUCCESS || dropout != 0) {
        throw data_error("'dropout' is not supported: it would make the ids of a text random").mend("set it to null");
      }
    } else {
      throw data_error(fmt::format("model '{}' has an option '{}' that is not supported", type, key));
    }
  }
  if (!vocab || !merges) throw data_error("model 'BPE' needs an object 'vocab' and a list 'merges'");
  Vocabulary vocabulary = read_vocabulary(*vocab);
  const std::vector<BpeMerge> list = read_merges(*merges, vocabulary, options);
  return std::make_unique<BpeModel>(std::move(vocabulary), list, std::move(options));
}

std::vector<AddedToken> read_added_tokens(dom::element value) {
  dom::array list;
  if (value.get_array().get(list) != simdjson::SUCCESS) throw data_error("'added_tokens' must be a list");
  std::vector<AddedToken> out;
  for (const dom::element item : list) {
    dom::object object;
    if (item.get_object().get(object) != simdjson::SUCCESS) throw data_error("an entry of 'added_tokens' is no object");
    AddedToken token;
    std::int64_t id = -1;
    bool has_normalized = false;
    for (const auto& [key, field] : object) {
      if (key == "content") {
        token.content = text_of(field, key);
      } else if (key == "id") {
        id = integer_of(field, key);
      } else if (key == "special") {
        token.special = flag_of(field, key);
      } else if (key == "normalized") {
        token.normalized = flag_of(field, key);
        has_normalized = true;
      } else if (key == "lstrip") {
        token.lstrip = flag_of(field, key);
      } else if (key == "rstrip") {
        token.rstrip = flag_of(field, key);
      } else if (key == "single_word") {
        token.single_word = flag_of(field, key);
      } else {
        throw data_error(fmt::format("an added token has an option '{}' that is not supported", key));
      }
    }
    if (id < 0 || id > Vocabulary::kLargestId) {
      throw data_error(
          fmt::format("added token '{}' has no id, or one outside 0…{}", token.content, Vocabulary::kLargestId));
    }
    token.id = static_cast<TokenId>(id);
    if (!has_normalized) token.normalized = !token.special;
    out.push_back(std::move(token));
  }
  return out;
}

Json to_json(dom::element value) {
  return parse_json(simdjson::minify(value), "component");
}

void read_section(std::string_view key, dom::element value, BpeTokenizerParts& parts,
                  std::optional<dom::object>& model) {
  if (key == "normalizer") {
    parts.normalizers = read_normalizers(to_json(value));
  } else if (key == "pre_tokenizer") {
    parts.pre_tokenizers = PreTokenizers::read(to_json(value));
  } else if (key == "post_processor") {
    parts.post_processor = PostProcessor::read(to_json(value));
  } else if (key == "decoder") {
    parts.decoder = Decoder::read(to_json(value));
  } else if (key == "added_tokens") {
    parts.added_tokens = read_added_tokens(value);
  } else if (key == "model") {
    dom::object object;
    if (value.get_object().get(object) != simdjson::SUCCESS) throw data_error("'model' must be an object");
    model = object;
  } else if (key == "version") {
    if (text_of(value, key) != "1.0")
      throw data_error(fmt::format("version '{}' is not supported", text_of(value, key)));
  } else if (key != "truncation" && key != "padding") {  // those two are the caller's business, as in transformers
    throw data_error(fmt::format("the section '{}' is not supported", key));
  }
}

Vocabulary read_vocab_file(std::string_view text) {
  dom::parser parser;
  const simdjson::padded_string padded(text);
  return read_vocabulary(parse_object(parser, padded));
}

std::vector<BpeMerge> read_merges_file(std::string_view text, const Vocabulary& vocabulary) {
  MergeReader reader(vocabulary, 0);
  for (std::size_t line = 1; !text.empty(); ++line) {
    std::string_view content = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), content.size() + 1));
    if (content.ends_with('\r')) content.remove_suffix(1);
    if (content.empty() || (line == 1 && content.starts_with("#version"))) continue;
    try {
      reader.add(content);
    } catch (Error& failure) {
      throw failure.at(fmt::format("line {}", line));
    }
  }
  return std::move(reader.merges);
}

// The pipelines of published vocab.json and merges.txt.
struct Pipeline {
  std::string_view tokenizer_class;
  const char* normalizer;
  std::optional<SplitPattern> pattern;  // byte-level; without one it is GPT-1's
  const char *suffix, *unk;
};
constexpr Pipeline kPipelines[] = {
    {"GPT2Tokenizer", "null", SplitPattern::kGpt2, "", nullptr},
    {"WhisperTokenizer", "null", SplitPattern::kGpt2, "", nullptr},
    {"Qwen2Tokenizer", R"({"type": "NFC"})", SplitPattern::kQwen2, "", nullptr},
    {"OpenAIGPTTokenizer", R"({"type": "BertNormalizer"})", std::nullopt, "</w>", "<unk>"},
};

Json pre_tokenizer_of(const Pipeline& pipeline, const TokenizerConfig& config) {
  if (!pipeline.pattern) return Json{{"type", "BertPreTokenizer"}};
  Json section = byte_level_section(*pipeline.pattern);
  if (section["type"] == "ByteLevel") section["add_prefix_space"] = config.add_prefix_space.value_or(false);
  return section;
}

Json decoder_of(const Pipeline& pipeline) {
  if (pipeline.pattern) return Json{{"type", "ByteLevel"}};
  return Json{{"type", "BPEDecoder"}, {"suffix", pipeline.suffix}};
}

const Pipeline& find_pipeline(std::string name) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  for (const Pipeline& pipeline : kPipelines) {
    if (pipeline.tokenizer_class == name) return pipeline;
  }
  throw data_error(fmt::format("a vocabulary with merges of the tokenizer_class '{}' is not supported", name))
      .mend(
          "write a tokenizer.json of it, or name its class (GPT2Tokenizer, WhisperTokenizer, Qwen2Tokenizer, "
          "OpenAIGPTTokenizer) in tokenizer_config.json");
}

}  // namespace

BpeTokenizerParts read_tokenizer_json(std::string_view text, const std::string& name) {
  try {
    dom::parser parser;
    const simdjson::padded_string padded(text);
    BpeTokenizerParts parts;
    std::optional<dom::object> model;
    std::set<std::string_view> seen;
    for (const auto& [key, value] : parse_object(parser, padded)) {
      if (!seen.insert(key).second) throw data_error(fmt::format("the section '{}' occurs twice", key));
      read_section(key, value, parts, model);
    }
    if (!model) throw data_error("there is no 'model'");
    if (seen.count("decoder") == 0) parts.decoder = Decoder::read(Json());
    try {
      parts.model = read_model(*model, parts.pre_tokenizers.byte_level());
    } catch (Error& failure) {
      throw failure.at("model");
    }
    Hasher hasher;
    hasher.add(kEncodingVersion);
    hasher.add(text);
    parts.fingerprint = hasher.value();
    return parts;
  } catch (Error& failure) {
    throw failure.at(name);
  }
}

BpeTokenizerParts read_vocab_and_merges(std::string_view vocab, const std::string& vocab_name, std::string_view merges,
                                        const std::string& merges_name, const TokenizerConfig& config) {
  std::string where = vocab_name;
  try {
    const Pipeline& pipeline = find_pipeline(config.tokenizer_class);
    BpeTokenizerParts parts;
    parts.normalizers = read_normalizers(parse_json(pipeline.normalizer, "normalizer"));
    const Json pre_tokenizer = pre_tokenizer_of(pipeline, config);
    parts.pre_tokenizers = PreTokenizers::read(pre_tokenizer);
    parts.decoder = Decoder::read(decoder_of(pipeline));
    Vocabulary vocabulary = read_vocab_file(vocab);
    where = merges_name;
    const std::vector<BpeMerge> list = read_merges_file(merges, vocabulary);
    BpeOptions options;
    options.end_of_word_suffix = pipeline.suffix;
    if (pipeline.unk != nullptr) options.unk_token = pipeline.unk;
    options.byte_level = parts.pre_tokenizers.byte_level();
    parts.model = std::make_unique<BpeModel>(std::move(vocabulary), list, std::move(options));
    Hasher hasher;
    hasher.add(kEncodingVersion);
    hasher.add(fmt::format("{}:{}:{}:", pipeline.tokenizer_class, pre_tokenizer.dump(), vocab.size()));
    hasher.add(vocab);
    hasher.add(merges);
    parts.fingerprint = hasher.value();
    return parts;
  } catch (Error& failure) {
    throw failure.at(where);
  }
}

}  // namespace convoy
