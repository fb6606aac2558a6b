// Files whose size and checksum are known once they are written: what a checkpoint's manifest records.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/files.h"
#include "base/hash.h"

namespace convoy {

// One written file. `name` is relative to the folder it belongs to ("model.safetensors").
struct FileDigest {
  std::string name;
  std::uint64_t size = 0;
  std::uint64_t xxh3 = 0;  // XXH3-64 of the content
  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

// A FileWriter that keeps a running checksum.
class HashingWriter {
 public:
  explicit HashingWriter(const std::filesystem::path& path);
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  std::uint64_t offset() const { return out_.offset(); }
  // Syncs the file to the disk. The digest's name is the path's last component.
  FileDigest close();

 private:
  std::filesystem::path path_;
  FileWriter out_;
  Hasher hasher_;
};

// Reads a file from front to back. Throws a storage error that names it.
FileDigest digest_file(const std::filesystem::path& path);
// Copies the content (links are followed) and syncs the copy; the digest is that of the bytes written.
FileDigest copy_with_digest(const std::filesystem::path& from, const std::filesystem::path& to);

// Throws a storage error with the needed and the available amount when the file system of `folder` (or of its nearest
// existing parent) has less than `bytes` free for this user.
void require_free_space(const std::filesystem::path& folder, std::uint64_t bytes);

// Throws a data error unless `name` is a relative path that stays inside its folder ("a", "a/b").
void require_inner_name(const std::string& name, const std::string& where);

// Tensor data is produced and consumed in pieces; 4 MiB keeps both the disk and the cache busy.
inline constexpr std::size_t kFileBlock = std::size_t{4} << 20;

}  // namespace convoy
