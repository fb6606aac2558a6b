// The programs of text generation and the memory that they take, the kept keys and values included.
#pragma once

#include "models/model.h"
#include "runtime/arenas.h"

namespace convoy {

struct GenerationShape {
  DType dtype = DType::kF32;
  std::int64_t sequences = 1;    // texts that grow at once
  std::int64_t capacity = 1;     // tokens of the longest text
  std::int64_t fill_tokens = 1;  // the most tokens of prompts in one program
  bool cache = true;             // false: every token is computed from the whole text
  std::int64_t cache_rows() const { return cache ? sequences * capacity : 0; }
};

// The programs differ in their number of tokens; they share one layout and one set of arenas.
class GenerationPrograms {
 public:
  // All must outlive the programs.
  GenerationPrograms(const Model& model, const GenerationShape& shape, const WorkspaceSizes& workspaces);

  const GenerationShape& shape() const { return shape_; }
  const Layout& layout() const { return layout_; }
  // Enough for the largest programs: those of fill_tokens and of `sequences` tokens.
  const ArenaSizes& sizes() const { return sizes_; }
  // Whether a program runs in these arenas. One of fewer tokens nearly always does.
  bool fits(const Program& program) const;

  // Reads whole documents, and gives the logits of `sequences` rows: output "logits".
  Program fill(std::int64_t tokens) const;
  // Reads the next token of each of `tokens` texts, and gives the logits of each.
  Program extend(std::int64_t tokens) const;

 private:
  GraphOptions options(CacheUse use, std::int64_t tokens) const;
  Program make(CacheUse use, std::int64_t tokens) const;
  void take(const Program& program);

  const Model& model_;
  const GenerationShape shape_;
  const WorkspaceSizes& workspaces_;
  Layout layout_;
  ArenaSizes sizes_;
};

}  // namespace convoy
