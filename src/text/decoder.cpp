#include "text/decoder.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "text/component.h"
#include "text/unicode.h"

namespace convoy {
namespace {

// A step that treats every token by itself.
class TokenwiseStep : public DecoderStep {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) apply_alone(token);
  }
};

// A token that is not wholly of the byte alphabet stands for itself: an added token.
class ByteLevelStep : public TokenwiseStep {
 public:
  void apply_alone(std::string& token) const override {
    std::string bytes;
    if (letters_to_bytes(token, bytes)) token = std::move(bytes);
  }
};

class ReplaceStep : public TokenwiseStep {
 public:
  ReplaceStep(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply_alone(std::string& token) const override { token = pattern_.replace_all(token, content_); }

 private:
  Pattern pattern_;
  std::string content_;
};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// <0xNN> becomes that byte.
class ByteFallbackStep : public TokenwiseStep {
 public:
  void apply_alone(std::string& token) const override {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return;
    const int high = hex_digit(token[3]), low = hex_digit(token[4]);
    if (high >= 0 && low >= 0) token.assign(1, static_cast<char>(high * 16 + low));
  }
};

class FuseStep : public DecoderStep {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens.assign(1, std::move(all));
  }
  void apply_alone(std::string&) const override {}
};

// Takes up to `start` and `stop` times the character off the two ends.
class StripStep : public DecoderStep {
 public:
  StripStep(char32_t content, std::size_t start, std::size_t stop) : start_(start), stop_(stop) {
    append_utf8(content_, content);
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::size_t begin = 0, end = token.size();
      for (std::size_t i = 0; i < start_ && token.compare(begin, content_.size(), content_) == 0; ++i) {
        begin += content_.size();
      }
      for (std::size_t i = 0; i < stop_ && end >= begin + content_.size() &&
                              token.compare(end - content_.size(), content_.size(), content_) == 0;
           ++i) {
        end -= content_.size();
      }
      token = token.substr(begin, end - begin);
    }
  }
  void apply_alone(std::string&) const override {}  // what it takes off are spaces that a neighbour decides about

 private:
  std::string content_;
  std::size_t start_, stop_;
};

std::string replace_text(const std::string& text, const std::string& from, std::string_view to) {
  return Pattern::literal(from).replace_all(text, to);
}

// ▁ becomes a space, but not one at the very beginning if one was put there.
class MetaspaceStep : public DecoderStep {
 public:
  MetaspaceStep(char32_t replacement, bool prepended) : prepended_(prepended) { append_utf8(mark_, replacement); }
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = replace_text(tokens[i], mark_, i == 0 && prepended_ ? "" : " ");
    }
  }
  void apply_alone(std::string& token) const override { token = replace_text(token, mark_, " "); }

 private:
  std::string mark_;
  bool prepended_;
};

// The suffix that ends a word becomes a space, but not at the end of the text.
class BpeStep : public DecoderStep {
 public:
  explicit BpeStep(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = replace_text(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
    }
  }
  void apply_alone(std::string& token) const override { token = replace_text(token, suffix_, " "); }

 private:
  std::string suffix_;
};

std::unique_ptr<const DecoderStep> read_metaspace(Component& c) {
  const char32_t replacement = c.character("replacement", char32_t{0x2581});
  const bool add_prefix = c.boolean("add_prefix_space", true);
  const std::string scheme = c.text("prepend_scheme", add_prefix ? "always" : "never");
  for (const char* key : {"str_rep", "split"}) c.ignore(key);
  if (scheme != "always" && scheme != "first" && scheme != "never") c.wrong("has an unknown prepend_scheme");
  return std::make_unique<MetaspaceStep>(replacement, scheme != "never");
}

std::unique_ptr<const DecoderStep> read_one(Component& c) {
  const std::string& type = c.type();
  if (type == "ByteLevel") {
    for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) c.ignore(key);
    return std::make_unique<ByteLevelStep>();
  }
  if (type == "Replace") {
    Pattern pattern = c.pattern("pattern");
    return std::make_unique<ReplaceStep>(std::move(pattern), c.text("content"));
  }
  if (type == "ByteFallback") return std::make_unique<ByteFallbackStep>();
  if (type == "Fuse") return std::make_unique<FuseStep>();
  if (type == "Strip") {
    const std::int64_t start = c.integer("start"), stop = c.integer("stop");
    if (start < 0 || stop < 0) c.wrong("needs counts that are not negative");
    return std::make_unique<StripStep>(c.character("content"), static_cast<std::size_t>(start),
                                       static_cast<std::size_t>(stop));
  }
  if (type == "Metaspace") return read_metaspace(c);
  if (type == "BPEDecoder") return std::make_unique<BpeStep>(c.text("suffix", "</w>"));
  c.unsupported();
}

// No decoder: what the file means is that tokens are words.
class JoinStep : public DecoderStep {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(0, 1, ' ');
  }
  void apply_alone(std::string&) const override {}
};

}  // namespace

Decoder Decoder::read(const Json& json) {
  Decoder out;
  for (Component& component : flatten_components(json, "decoder", "decoders")) {
    out.steps_.push_back(read_one(component));
    component.finish();
  }
  if (json.is_null()) out.steps_.push_back(std::make_unique<JoinStep>());
  return out;
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  for (const auto& step : steps_) step->apply(tokens);
  std::string out;
  for (const std::string& token : tokens) out += token;
  return out;
}

std::string Decoder::token_bytes(std::string token) const {
  for (const auto& step : steps_) step->apply_alone(token);
  return token;
}

}  // namespace convoy
