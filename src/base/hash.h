// Checksums and content keys: XXH3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace convoy {

std::uint64_t hash64(std::span<const std::byte> bytes);
std::uint64_t hash64(std::string_view text);
// 16 lower-case hexadecimal digits.
std::string hex64(std::uint64_t value);

// A running XXH3-64; equal to hash64 of the concatenation.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text.data(), text.size()))); }
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace convoy
