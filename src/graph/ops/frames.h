// What an audio encoder needs beside the operations of a language model: convolution over time as a matrix product,
// neighbouring frames merged into one row, and audio rows that take the place of text rows.
#pragma once

#include "graph/op.h"

namespace convoy {

// Taps of a convolution over time; one frame of zeros is added at both ends of a window.
inline constexpr std::int64_t kConvolutionTaps = 3;
// Frames that come out of a window of `frames`.
std::int64_t convolved_frames(std::int64_t frames, std::int64_t stride);

// (x [windows·frames, C]) → [windows·out, 3C]: the frames that each output frame of a convolution sees, element c·3 + k
// being channel c of frame t·stride + k - 1, so that a weight [out, C, 3] is a matrix [out, 3C]. No frame sees another
// window.
struct Unfold final : Op {
  Unfold(std::int64_t window_frames, std::int64_t step) : frames(window_frames), stride(step) {}
  std::string_view name() const override { return "unfold"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  bool cheap() const override { return true; }
  std::int64_t frames;  // of a window
  std::int64_t stride;  // 1 or 2
};

// (dcolumns [windows·out, 3C]) → dx [windows·frames, C].
struct UnfoldGrad final : Op {
  UnfoldGrad(std::int64_t window_frames, std::int64_t step) : frames(window_frames), stride(step) {}
  std::string_view name() const override { return "unfold_grad"; }
  std::string attributes() const override;
  std::vector<TensorSpec> infer(Specs in) const override;
  std::int64_t frames;
  std::int64_t stride;
};

// The same elements in another shape.
struct Reshape final : Op {
  explicit Reshape(Shape to) : shape(to) {}
  std::string_view name() const override { return "reshape"; }
  std::string attributes() const override { return shape.str(); }
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  std::vector<Alias> aliases() const override { return {{0, 0, false}}; }
  bool cheap() const override { return true; }
  Shape shape;
};

// (text [tokens, d], rows [n, d], source i32[tokens]) → text with row source[t] of `rows` in the place of row t where
// source[t] is not -1. No row is taken twice.
struct ReplaceRows final : Op {
  std::string_view name() const override { return "replace_rows"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  std::vector<Alias> aliases() const override { return {{0, 0, false}}; }
  bool cheap() const override { return true; }
};

// (dy [tokens, d], source i32[tokens]) → dtext (zero where a row was replaced), drows [rows, d] (zero where one was not
// used).
struct ReplaceRowsGrad final : Op {
  explicit ReplaceRowsGrad(std::int64_t row_count) : rows(row_count) {}
  std::string_view name() const override { return "replace_rows_grad"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override { return {{0, 0, false}}; }
  std::int64_t rows;
};

// A run of a bias and where it lies in the fused one.
struct BiasPart {
  std::int64_t from = 0, to = 0, count = 0;
};

// (bias [n]) → [width]: its parts at their places, zeros elsewhere. For fused products of which some have no bias.
struct ExpandBias final : Op {
  ExpandBias(std::int64_t fused_width, std::vector<BiasPart> runs) : width(fused_width), parts(std::move(runs)) {}
  std::string_view name() const override { return "expand_bias"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  void backward(BackwardContext& context) const override;
  bool cheap() const override { return true; }
  std::int64_t width;
  std::vector<BiasPart> parts;
};

// (dfused [width], sum?) → the gradient of the bias [n], added into `sum` where given.
struct ExpandBiasGrad final : Op {
  ExpandBiasGrad(std::int64_t bias_width, std::vector<BiasPart> runs) : width(bias_width), parts(std::move(runs)) {}
  std::string_view name() const override { return "expand_bias_grad"; }
  std::vector<TensorSpec> infer(Specs in) const override;
  std::vector<Alias> aliases() const override { return {{0, 1, true}}; }
  std::int64_t width;
  std::vector<BiasPart> parts;
};

}  // namespace convoy
