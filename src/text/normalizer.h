// The normalizers of tokenizer.json: what happens to text before it is cut into pieces.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/json.h"

namespace convoy {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(std::string& text) const = 0;
};

// NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Replace, Prepend, ByteLevel, BertNormalizer and Sequence of
// them; null gives none. The order is that of application. Invalid bytes pass through the forms unchanged.
std::vector<std::unique_ptr<const Normalizer>> read_normalizers(const Json& json);

}  // namespace convoy
