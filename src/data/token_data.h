// Tokenised documents: ids, and which of them are training targets. The data lie in one block of memory (a mapped file
// or a buffer) and are read in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/hash.h"
#include "data/report.h"
#include "text/chat.h"

namespace convoy {

// Tokens [begin, end) of a document are training targets.
struct TokenSpan {
  std::uint32_t begin = 0, end = 0;
  friend bool operator==(const TokenSpan&, const TokenSpan&) = default;
};

class TokenData {
 public:
  // Checks everything: sizes, version, checksums, order of offsets. `name` goes into errors, which are data errors.
  static std::shared_ptr<const TokenData> open(const std::filesystem::path& path);
  static std::shared_ptr<const TokenData> from_memory(std::string bytes, const std::string& name);
  TokenData(const TokenData&) = delete;
  TokenData& operator=(const TokenData&) = delete;

  std::int64_t documents() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  std::int64_t tokens() const { return static_cast<std::int64_t>(offsets_.back()); }
  std::int64_t length(std::int64_t document) const {
    const auto d = static_cast<std::size_t>(document);
    return static_cast<std::int64_t>(offsets_[d + 1] - offsets_[d]);
  }
  // Bytes of one stored id: 2 or 4. Only the view of that width is not empty.
  int id_bytes() const { return ids16_.empty() ? 4 : 2; }
  std::span<const std::uint16_t> ids16(std::int64_t document) const { return slice(ids16_, document); }
  std::span<const TokenId> ids32(std::int64_t document) const { return slice(ids32_, document); }
  // Writes ids [begin, begin + count) of a document.
  void copy(std::int64_t document, std::int64_t begin, std::int64_t count, TokenId* to) const;
  // Sorted, not overlapping, not touching.
  std::span<const TokenSpan> trained(std::int64_t document) const {
    const auto d = static_cast<std::size_t>(document);
    return spans_.subspan(span_index_[d], span_index_[d + 1] - span_index_[d]);
  }
  // The right class or alternative of a task's document; -1 where the data hold none.
  std::int32_t label(std::int64_t document) const {
    return labels_.empty() ? -1 : labels_[static_cast<std::size_t>(document)];
  }
  // Where the second and later alternatives of a document begin.
  std::span<const std::uint32_t> parts(std::int64_t document) const {
    const auto d = static_cast<std::size_t>(document);
    return part_index_.empty() ? parts_ : parts_.subspan(part_index_[d], part_index_[d + 1] - part_index_[d]);
  }
  // Number of target tokens in [begin, end).
  std::int64_t targets(std::int64_t document, std::int64_t begin, std::int64_t end) const;
  // What the tokens were made from; see token_cache.h.
  std::uint64_t key() const { return key_; }
  const DataReport& report() const { return report_; }

 private:
  TokenData() = default;
  void parse(std::span<const std::byte> bytes, const std::string& name);
  bool parts_fit() const;
  template <typename T>
  std::span<const T> slice(std::span<const T> all, std::int64_t document) const {
    const auto d = static_cast<std::size_t>(document);
    return all.empty() ? all : all.subspan(offsets_[d], offsets_[d + 1] - offsets_[d]);
  }

  MappedFile file_;
  std::string memory_;
  std::span<const std::uint16_t> ids16_;
  std::span<const TokenId> ids32_;
  std::span<const std::uint64_t> offsets_, span_index_, part_index_;
  std::span<const TokenSpan> spans_;
  std::span<const std::uint32_t> parts_;
  std::span<const std::int32_t> labels_;
  std::uint64_t key_ = 0;
  DataReport report_;
};

// Writes such a block front to back: a header, the ids as they come, then the tables and a footer with the checksums.
class TokenWriter {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;
  // Ids are stored in 2 bytes where the vocabulary allows.
  TokenWriter(Sink sink, std::int64_t vocab_size, std::uint64_t key);
  // Throws a data error for a document of 2^32 tokens or more.
  void add(const EncodedSample& sample);
  void finish(const DataReport& report);

 private:
  void write(std::span<const std::byte> bytes);
  template <typename T>
  std::uint64_t table(const std::vector<T>& values);

  Sink sink_;
  Hasher hasher_;
  std::uint64_t key_, written_ = 0;
  std::uint32_t id_bytes_;
  std::vector<std::uint16_t> narrow_;
  std::vector<std::uint64_t> offsets_{0}, span_index_{0}, part_index_{0};
  std::vector<TokenSpan> spans_;
  std::vector<std::uint32_t> parts_;
  std::vector<std::int32_t> labels_;
  bool labelled_ = false;
};

}  // namespace convoy
