// The decoders of tokenizer.json: tokens back to text.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/json.h"

namespace convoy {

class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
  // The same for one token without regard to its neighbours.
  virtual void apply_alone(std::string& token) const = 0;
};

class Decoder {
 public:
  // ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, BPEDecoder and Sequence of them; with null, tokens are
  // joined by spaces.
  static Decoder read(const Json& json);

  // The bytes of the text; invalid UTF-8 where the tokens are.
  std::string decode(std::vector<std::string> tokens) const;
  std::string token_bytes(std::string token) const;

 private:
  std::vector<std::unique_ptr<const DecoderStep>> steps_;
};

}  // namespace convoy
