#include "checkpoint/checked_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

// Free bytes for this user where `path` lies or would lie; nothing when the file system does not say.
std::optional<std::uint64_t> free_bytes(fs::path path) {
  struct statvfs info {};
  while (::statvfs(path.empty() ? "." : path.c_str(), &info) != 0) {
    if (errno != ENOENT || path.empty()) return std::nullopt;
    path = path.parent_path();
  }
  if (info.f_blocks == 0) return std::nullopt;  // some network file systems leave the numbers out
  return std::uint64_t{info.f_bavail} * info.f_frsize;
}

void read_blocks(const fs::path& path, const std::function<void(std::span<const std::byte>)>& sink) {
  struct Descriptor {
    int fd;
    ~Descriptor() {
      if (fd >= 0) ::close(fd);
    }
  } file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  const auto fail = [&](const char* doing) {
    throw storage_error(fmt::format("cannot {} {}: {}", doing, path.string(), std::strerror(errno)));
  };
  if (file.fd < 0) fail("open");
  ::posix_fadvise(file.fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<std::byte> block(kFileBlock);
  for (;;) {
    const ssize_t n = ::read(file.fd, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read");
    if (n == 0) return;
    sink({block.data(), static_cast<std::size_t>(n)});
  }
}

}  // namespace

HashingWriter::HashingWriter(const fs::path& path) : path_(path), out_(path) {}

void HashingWriter::write(std::span<const std::byte> bytes) {
  try {
    out_.write(bytes);
  } catch (Error& error) {
    if (error.remedy().empty() && free_bytes(path_.parent_path()).value_or(bytes.size()) < bytes.size()) {
      error.mend("free some space there, or keep fewer checkpoints with save_total_limit");
    }
    throw;
  }
  hasher_.add(bytes);
}

FileDigest HashingWriter::close() {
  out_.close();
  return {path_.filename().string(), out_.offset(), hasher_.value()};
}

FileDigest digest_file(const fs::path& path) {
  Hasher hasher;
  FileDigest digest{path.filename().string(), 0, 0};
  read_blocks(path, [&](std::span<const std::byte> block) {
    hasher.add(block);
    digest.size += block.size();
  });
  digest.xxh3 = hasher.value();
  return digest;
}

FileDigest copy_with_digest(const fs::path& from, const fs::path& to) {
  HashingWriter out(to);
  read_blocks(from, [&](std::span<const std::byte> block) { out.write(block); });
  return out.close();
}

void require_free_space(const fs::path& folder, std::uint64_t bytes) {
  const std::optional<std::uint64_t> free = free_bytes(folder);
  if (!free) {
    log_warning("the file system of {} does not tell its free space; {} bytes are needed there", folder.string(),
                bytes);
    return;
  }
  const std::uint64_t available = *free;
  if (available >= bytes) return;
  throw storage_error(fmt::format("not enough space on the disk: {} bytes ({:.2f} GB) are needed, {} ({:.2f} GB) are "
                                  "available",
                                  bytes, static_cast<double>(bytes) / 1e9, available,
                                  static_cast<double>(available) / 1e9))
      .at(folder.string())
      .mend("free some space there, keep fewer checkpoints with save_total_limit, or choose another output_dir");
}

void require_inner_name(const std::string& name, const std::string& where) {
  const fs::path path(name);
  bool inside = !name.empty() && !path.is_absolute() && name.find('\0') == std::string::npos && path.has_filename();
  for (const fs::path& part : path) inside = inside && part != ".." && part != ".";
  if (!inside) throw data_error(fmt::format("'{}' is not the name of a file inside the folder", name)).at(where);
}

}  // namespace convoy
