#include "graph/ops/fp8.h"

#include "base/error.h"

namespace convoy {
namespace {

void check_matrix(const TensorSpec& x) {
  check(x.dtype == DType::kBF16 && x.shape.rank() == 2, "fp8 takes bf16 matrices");
  check(x.shape[0] % kFp8Alignment == 0 && x.shape[1] % kFp8Alignment == 0,
        "fp8: rows and columns must be multiples of 16");
}

bool is_scale(const TensorSpec* spec) {
  return spec != nullptr && *spec == TensorSpec{DType::kF32, {1}};
}

bool given(Specs in, std::size_t i) {
  return i < in.size() && in[i] != nullptr;
}

}  // namespace

std::vector<TensorSpec> Fp8Scale::infer(Specs in) const {
  check_matrix(*in[0]);
  check(is_fp8(to), "fp8_scale: not an 8-bit type");
  return {{DType::kF32, {1}}};
}

std::string Fp8Quantize::attributes() const {
  std::string text(name_of(to));
  if (keep == Keep::kTransposed) text += " transposed";
  if (keep == Keep::kBoth) text += " and transposed";
  return text;
}

std::vector<TensorSpec> Fp8Quantize::infer(Specs in) const {
  check_matrix(*in[0]);
  check(is_fp8(to) && is_scale(in[1]), "fp8_quantize: not an 8-bit type with its scale");
  const std::int64_t m = in[0]->shape[0], n = in[0]->shape[1];
  std::vector<TensorSpec> out;
  if (keeps_rows()) out.push_back({to, {m, n}});
  if (keeps_transposed()) out.push_back({to, {n, m}});
  return out;
}

std::string_view Fp8Product::name() const {
  switch (kind) {
    case Kind::kForward:
      return "fp8_linear";
    case Kind::kInputGrad:
      return "fp8_linear_dx";
    case Kind::kWeightGrad:
      return "fp8_linear_dw";
  }
  return "?";
}

std::string Fp8Product::attributes() const {
  if (narrow) return "narrow";
  return activation == Activation::kNone ? "" : std::string(name_of(activation));
}

std::vector<TensorSpec> Fp8Product::infer(Specs in) const {
  check(in.size() >= 4 && is_fp8(in[0]->dtype) && is_fp8(in[1]->dtype), "fp8_linear takes two 8-bit matrices");
  check(in[0]->shape[1] == in[1]->shape[1], "fp8_linear: the factors' rows differ in length");
  check(is_scale(in[2]) && is_scale(in[3]), "fp8_linear: a factor has no scale");
  check(in[0]->dtype == DType::kF8E4M3 || in[1]->dtype == DType::kF8E4M3, "fp8_linear: one factor must be E4M3");
  check(kind == Kind::kForward || (!given(in, kBias) && activation == Activation::kNone),
        "fp8_linear: a gradient has neither bias nor activation");
  const std::int64_t m = in[0]->shape[0], n = in[1]->shape[0];
  if (given(in, kBias)) check(in[kBias]->shape == Shape({n}), "fp8_linear: the bias does not fit the weight");
  const TensorSpec c{kind == Kind::kWeightGrad && !narrow ? DType::kF32 : DType::kBF16, {m, n}};
  if (given(in, kSum)) check(kind != Kind::kForward && *in[kSum] == c, "fp8_linear: the sum does not fit");
  if (keep_preactivation) return {c, c};
  return {c};
}

Cost Fp8Product::cost(Specs in, std::span<const TensorSpec> out) const {
  return {2.0 * static_cast<double>(out[0].numel()) * static_cast<double>(in[0]->shape[1]), traffic(in, out)};
}

std::vector<Alias> Fp8Product::aliases() const {
  if (kind == Kind::kForward) return {};
  return {{0, kSum, kind == Kind::kWeightGrad}};
}

}  // namespace convoy
