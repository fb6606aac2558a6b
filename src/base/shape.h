// Shapes and tensor descriptions. Row-major, dense.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/error.h"

namespace convoy {

class Shape {
 public:
  static constexpr std::size_t kMaxRank = 6;
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const std::int64_t> dims) {
    check(dims.size() <= kMaxRank, "a shape has more than six dimensions");
    for (std::int64_t d : dims) dims_[rank_++] = d;
  }
  std::size_t rank() const { return rank_; }
  std::int64_t operator[](std::size_t i) const { return dims_[i]; }
  std::int64_t back() const { return dims_[rank_ - 1]; }
  std::span<const std::int64_t> dims() const { return {dims_.data(), rank_}; }
  // Number of elements; 1 for a scalar (rank 0).
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (std::size_t i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (std::size_t i = 0; i < a.rank_; ++i) {
      if (a.dims_[i] != b.dims_[i]) return false;
    }
    return true;
  }
  // "[2, 3]"
  std::string str() const {
    std::string s = "[";
    for (std::size_t i = 0; i < rank_; ++i) s += (i ? ", " : "") + std::to_string(dims_[i]);
    return s + "]";
  }

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  std::size_t rank_ = 0;
};

struct TensorSpec {
  DType dtype = DType::kF32;
  Shape shape;
  std::int64_t numel() const { return shape.numel(); }
  std::size_t bytes() const { return static_cast<std::size_t>(shape.numel()) * size_of(dtype); }
  // "bf16[2, 3]"
  std::string str() const { return std::string(name_of(dtype)) + shape.str(); }
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

}  // namespace convoy
