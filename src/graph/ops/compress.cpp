#include "graph/ops/compress.h"

#include "base/error.h"

namespace convoy {

std::int64_t sign_bytes(std::int64_t n) {
  const std::int64_t blocks = (n + kSignBlock - 1) / kSignBlock;
  return (blocks + 1) / 2 * 8 + (n + 63) / 64 * 8;  // the words of signs are aligned
}

std::vector<TensorSpec> SignCompress::infer(Specs in) const {
  check(in.size() == 2 && *in[0] == *in[1] && in[0]->dtype == DType::kF32,
        "sign_compress takes a gradient and its error");
  return {{DType::kU8, {sign_bytes(in[0]->numel())}}, *in[1]};
}

std::vector<TensorSpec> SignSum::infer(Specs in) const {
  check(in.size() == 1 && in[0]->numel() == ranks * sign_bytes(result.numel()), "sign_sum: not the ranks' signs");
  return {result};
}

std::vector<TensorSpec> Convert::infer(Specs in) const {
  return {{to, in[0]->shape}};
}

}  // namespace convoy
