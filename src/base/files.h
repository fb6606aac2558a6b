// Files: mapping, whole reads, and writes that are never seen half done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

// A file mapped read-only. Throws a storage error that names the file.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

std::string read_file(const std::filesystem::path& path);
// Writes under a temporary name in the same folder, syncs, then renames.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);
// Syncs a file's or a folder's entries to the disk.
void sync_path(const std::filesystem::path& path);

// Writes a file front to back; close() syncs. Every failure is a storage error that names the file and the reason.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  std::uint64_t offset() const { return offset_; }
  void close();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::uint64_t offset_ = 0;
};

// The files that a shell pattern names (`*`, `?`, `[…]`), sorted; a plain path names itself when it exists. Empty if
// none.
std::vector<std::filesystem::path> expand_glob(const std::string& pattern);

}  // namespace convoy
