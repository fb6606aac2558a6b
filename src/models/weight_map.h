// Matches a model's tensors with those of a file: prefixes that come and go, tied weights stored once or twice,
// buffers.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"

namespace convoy {

struct StoredTensor {
  std::string name;
  TensorSpec spec;
};

// How one stored tensor is written: from a run of rows of a parameter, or carried over as it was.
struct StoredBinding {
  StoredTensor stored;
  bool carried = false;
  std::size_t parameter = 0;
  std::int64_t first_row = 0;
};

struct WeightMap {
  std::vector<StoredBinding> bindings;  // in the file's order
  // A tied model whose file holds both names: the pairs that must hold equal bytes.
  std::vector<std::pair<std::string, std::string>> must_be_equal;
  // Parameters that the files lack wholly or in part and that start fresh; they are written under canonical names.
  std::vector<std::size_t> fresh;
  // Stored tensors that the model has no use for: the heads of other tasks.
  std::vector<std::string> left_out;
};

// Throws a data error that lists missing and unexpected tensors and wrong shapes.
WeightMap match_weights(const Model& model, const std::vector<StoredTensor>& stored, const std::string& where);
// The map of a fresh model: canonical names, tied weights once (but see Model::writes_all_names).
WeightMap canonical_weights(const Model& model, DType dtype);

}  // namespace convoy
