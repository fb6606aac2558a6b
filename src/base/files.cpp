#include "base/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace convoy {
namespace {

Error system_failure(std::string_view doing, const std::filesystem::path& path) {
  const int code = errno;
  return storage_error(fmt::format("cannot {} {}: {}", doing, path.string(), std::strerror(code)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) throw system_failure("open", path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw system_failure("read the size of", path);
  if (!S_ISREG(info.st_mode)) throw storage_error(fmt::format("{} is not a regular file", path.string()));
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (mapped == MAP_FAILED) {
    size_ = 0;
    throw system_failure("map", path);
  }
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw system_failure("open", path);
  std::ostringstream content;
  content << in.rdbuf();
  if (in.bad()) throw system_failure("read", path);
  return std::move(content).str();
}

void sync_path(const std::filesystem::path& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) throw system_failure("open", path);
  if (::fsync(fd.get()) != 0) throw system_failure("sync", path);
}

void write_file_atomic(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".tmp{}", ::getpid());
  {
    FileWriter out(temporary);
    out.write(content);
    out.close();
  }
  std::error_code failure;
  std::filesystem::rename(temporary, path, failure);
  if (failure)
    throw storage_error(
        fmt::format("cannot rename {} to {}: {}", temporary.string(), path.string(), failure.message()));
  sync_path(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

FileWriter::FileWriter(const std::filesystem::path& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) throw system_failure("create", path);
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      throw system_failure("write", path_);
    }
    offset_ += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void FileWriter::close() {
  if (fd_ < 0) return;
  const int fd = std::exchange(fd_, -1);
  const bool synced = ::fsync(fd) == 0;
  const bool closed = ::close(fd) == 0;
  if (!synced || !closed) throw system_failure("sync", path_);
}

std::vector<std::filesystem::path> expand_glob(const std::string& pattern) {
  std::vector<std::filesystem::path> paths;
  if (std::filesystem::exists(pattern)) return {pattern};
  glob_t found{};
  if (::glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  return paths;
}

}  // namespace convoy
