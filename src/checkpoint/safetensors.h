// The safetensors file format, read strictly and written in a stream.
//
// Layout: u64 little-endian header length N; N bytes of JSON {name: {dtype, shape, data_offsets: [begin, end]}}, with
// an optional "__metadata__" map of strings; then the tensors, row-major, back to back without holes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/files.h"
#include "base/shape.h"
#include "checkpoint/checked_files.h"

namespace convoy {

struct SafetensorsTensor {
  std::string name;
  TensorSpec spec;
  // Stored as BOOL (one byte an element); `spec` then says u8.
  bool boolean = false;
  // First byte, counted from the start of the file.
  std::uint64_t begin = 0;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in the order of their bytes
  std::unordered_map<std::string, std::size_t> index;
  SafetensorsMetadata metadata;
};

// Reads the header of a whole file's bytes and checks it against their number. `file` goes into the errors: a storage
// error for a file that is cut short, a data error for every other violation of the format.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes, const std::string& file);

// The bytes before the first tensor of a file with these tensors in this order: length, JSON, padding to 8 bytes.
std::string safetensors_header(std::span<const SafetensorsTensor> tensors, const SafetensorsMetadata& metadata);

// The largest header that readers of the format accept.
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

// A safetensors file mapped into memory; a tensor's bytes come from the disk when they are touched. Safe to read from
// many threads.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  struct Found {
    TensorSpec spec;
    std::span<const std::byte> bytes;
  };

  const std::filesystem::path& path() const { return path_; }
  std::span<const SafetensorsTensor> tensors() const { return header_.tensors; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  const SafetensorsTensor* lookup(const std::string& name) const;
  bool contains(const std::string& name) const { return lookup(name) != nullptr; }
  // Throws a data error that names the file and the nearest tensor name.
  Found find(const std::string& name) const;
  std::span<const std::byte> bytes(const SafetensorsTensor& tensor) const;

 private:
  std::filesystem::path path_;
  MappedFile mapped_;
  SafetensorsHeader header_;
};

// Writes one safetensors file front to back. All tensors are declared first, so the header is complete before any data
// and no tensor need be in memory whole.
class SafetensorsWriter {
 public:
  // Only name, spec and boolean of each tensor count. Readers map the file, so declare wide element types before
  // narrow ones (every tensor is then aligned to its element).
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsTensor> tensors,
                    const SafetensorsMetadata& metadata = {{"format", "pt"}});

  std::span<const SafetensorsTensor> tensors() const { return tensors_; }
  // The next bytes of tensor `name`: tensors come in the declared order, each in pieces of any size.
  // Throws an internal error when the bytes are not the ones that come next.
  void write(const std::string& name, std::span<const std::byte> piece);
  // Throws an internal error when a tensor is incomplete. Syncs the file.
  FileDigest close();

  // Bytes of a file with these tensors.
  static std::uint64_t file_size(std::span<const SafetensorsTensor> tensors, const SafetensorsMetadata& metadata);

 private:
  void skip_complete();
  std::vector<SafetensorsTensor> tensors_;
  HashingWriter out_;
  std::size_t current_ = 0;
  std::uint64_t written_ = 0;  // of the current tensor
};

}  // namespace convoy
