// The post-processors of tokenizer.json: the tokens added before and after a text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

namespace convoy {

struct PostProcessor {
  std::vector<TokenId> before;
  std::vector<TokenId> after;

  // TemplateProcessing (its form for a single text), BertProcessing, RobertaProcessing, ByteLevel (no effect on ids)
  // and Sequence of them, each around the result of the one before; null adds nothing.
  static PostProcessor read(const Json& json);
};

}  // namespace convoy
