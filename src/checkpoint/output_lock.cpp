#include "checkpoint/output_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

Error not_writable(const fs::path& folder, const std::string& why) {
  return storage_error(fmt::format("cannot write into output_dir: {}", why))
      .at(folder.string())
      .mend("take another output_dir, or let this user write there");
}

// What the holder wrote about itself; a moment after it took the lock that may still be nothing.
std::string holder(int fd) {
  std::array<char, 256> text{};
  const ssize_t got = ::pread(fd, text.data(), text.size() - 1, 0);
  return got > 0 ? std::string(text.data(), static_cast<std::size_t>(got)) : "another process";
}

std::string description() {
  std::array<char, 65> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return fmt::format("process {} on {}", ::getpid(), host.data());
}

// Whether the name still belongs to this file: the one who held the lock removes it at its end.
bool is_named(int fd, const fs::path& path) {
  struct stat mine {};
  struct stat named {};
  return ::fstat(fd, &mine) == 0 && ::stat(path.c_str(), &named) == 0 && mine.st_ino == named.st_ino &&
         mine.st_dev == named.st_dev;
}

}  // namespace

OutputLock::OutputLock(const fs::path& output_dir) : path_(output_dir / kFileName) {
  std::error_code failure;
  fs::create_directories(output_dir, failure);
  if (failure) throw not_writable(output_dir, failure.message());
  while (!try_take(output_dir)) {
  }
}

// False if the file was another run's, which removed it in the meantime.
bool OutputLock::try_take(const fs::path& output_dir) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw not_writable(output_dir, std::strerror(errno));
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const bool held = errno == EWOULDBLOCK;
    const std::string who = held ? holder(fd_) : "";
    ::close(std::exchange(fd_, -1));
    if (held) {
      throw usage_error(fmt::format("another run writes into output_dir: {}", who))
          .at(output_dir.string())
          .mend("wait for its end, or take another output_dir");
    }
    log_warning("no locks on the file system of {}: see that no other run writes there", output_dir.string());
    return true;
  }
  if (!is_named(fd_, path_)) {
    ::close(std::exchange(fd_, -1));
    return false;
  }
  // For people; a full disk is reported by whoever writes something that counts.
  const std::string text = description();
  if (::ftruncate(fd_, 0) == 0) [[maybe_unused]]
    const ssize_t ignored = ::pwrite(fd_, text.data(), text.size(), 0);
  return true;
}

OutputLock::~OutputLock() {
  if (fd_ < 0) return;
  ::unlink(path_.c_str());  // while it is held: nobody else's can bear the name now
  ::close(fd_);
}

}  // namespace convoy
