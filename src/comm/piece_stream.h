// Walks through the bytes of a list of tensors as if they were one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace convoy {

template <typename Byte>  // std::byte, or const std::byte
class PieceStream {
 public:
  void clear() {
    parts_.clear();
    rewind();
    bytes_ = 0;
  }
  void add(Byte* data, std::size_t bytes) {
    if (bytes == 0) return;
    parts_.push_back({data, bytes});
    bytes_ += bytes;
  }
  void rewind() {
    part_ = 0;
    offset_ = 0;
  }
  std::size_t bytes() const { return bytes_; }

  // Calls use(pointer, length, bytes before it in this call) for the next `count` bytes, or what is left of them.
  template <typename Use>
  std::size_t take(std::size_t count, const Use& use) {
    std::size_t taken = 0;
    while (taken < count && part_ < parts_.size()) {
      const std::size_t length = std::min(count - taken, parts_[part_].bytes - offset_);
      use(parts_[part_].data + offset_, length, taken);
      taken += length;
      offset_ += length;
      if (offset_ == parts_[part_].bytes) {
        ++part_;
        offset_ = 0;
      }
    }
    return taken;
  }
  std::size_t copy_out(std::byte* to, std::size_t count) {
    return take(count, [&](Byte* from, std::size_t length, std::size_t at) { std::memcpy(to + at, from, length); });
  }
  std::size_t copy_in(const std::byte* from, std::size_t count) {
    return take(count, [&](Byte* to, std::size_t length, std::size_t at) { std::memcpy(to, from + at, length); });
  }

 private:
  struct Part {
    Byte* data;
    std::size_t bytes;
  };
  std::vector<Part> parts_;
  std::size_t part_ = 0, offset_ = 0, bytes_ = 0;
};

}  // namespace convoy
