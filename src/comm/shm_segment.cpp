#include "comm/shm_segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <thread>

#include "base/error.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kReady = 0x434f4e564f593031;  // "CONVOY01"
constexpr std::chrono::milliseconds kLookAround{20};  // how often a waiter looks whether its peers are alive
constexpr std::size_t kPage = 4096;
constexpr int kSpins = 2000;

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
}

long futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

struct flock byte_lock(short type, int byte) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

enum State : std::uint32_t { kComing = 0, kHere = 1, kLeft = 2 };

Error peer_lost(const std::string& what) {
  return {Status::kPeerLost, what};
}

Error already_running(int rank) {
  return usage_error(fmt::format("rank {} of this job is already running", rank))
      .mend("start each rank once; two jobs at once need names of their own (CONVOY_JOB, or another MASTER_PORT)");
}

bool lock_is_held(int file, int byte) {
  struct flock lock = byte_lock(F_WRLCK, byte);
  if (::fcntl(file, F_OFD_GETLK, &lock) != 0) return true;  // cannot tell: the timeout will
  return lock.l_type != F_UNLCK;
}

// A job that is killed before its ranks have met leaves its segment behind: memory that nobody would give back. Younger
// ones may belong to a job that has not locked it yet.
void remove_leftovers() {
  constexpr std::time_t kOld = 60;
  const std::string mine = fmt::format("convoy-{}-", ::getuid());
  std::error_code failure;
  for (std::filesystem::directory_iterator it("/dev/shm", failure), end; !failure && it != end; it.increment(failure)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(mine)) continue;
    const int file = ::shm_open(("/" + name).c_str(), O_RDWR | O_CLOEXEC, 0);
    if (file < 0) continue;
    struct stat status {};
    if (::fstat(file, &status) == 0 && ::time(nullptr) - status.st_mtime > kOld && !lock_is_held(file, 0))
      ::shm_unlink(("/" + name).c_str());
    ::close(file);
  }
}

}  // namespace

struct alignas(64) ShmSegment::Control {
  std::atomic<std::uint64_t> arrived;
  alignas(64) std::atomic<std::uint64_t> progress;  // time
  std::atomic<std::uint32_t> state;
  OperationMark marks[2];  // of this meeting and the one before
};

struct ShmSegment::Header {
  std::atomic<std::uint64_t> ready;
  std::uint64_t size, scratch;
  alignas(64) std::atomic<std::uint32_t> wakes;    // the futex
  alignas(64) std::atomic<std::uint32_t> waiters;  // asleep, or about to
  alignas(64) std::atomic<std::uint32_t> aborted;
  char reason[1024];
};

ShmSegment::Control& ShmSegment::control(int of) const {
  constexpr std::size_t kFirst = (sizeof(Header) + 63) / 64 * 64;
  return *reinterpret_cast<Control*>(base_ + kFirst + static_cast<std::size_t>(of) * sizeof(Control));
}

std::size_t ShmSegment::scratch_offset(int of) const {
  const std::size_t controls = kPage + static_cast<std::size_t>(options_.size) * sizeof(Control);
  return (controls + kPage - 1) / kPage * kPage + static_cast<std::size_t>(of) * options_.scratch;
}

std::byte* ShmSegment::scratch(int of) const {
  return base_ + scratch_offset(of);
}

void ShmSegment::map(std::size_t bytes) {
  bytes_ = bytes;
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) {
    throw Error(Status::kDoesNotFit,
                fmt::format("cannot map {} bytes of shared memory: {}", bytes, std::strerror(errno)))
        .mend("give the container more shared memory (docker run --shm-size, or --ipc host)");
  }
  base_ = static_cast<std::byte*>(mapped);
  header_ = reinterpret_cast<Header*>(base_);
}

ShmSegment::ShmSegment(const SegmentOptions& options) : options_(options) {
  check(sizeof(Header) <= 4096, "the header fits its page");
  options_.scratch = (options.scratch + kPage - 1) / kPage * kPage;
  // Where the ranks outnumber the cores, a spinning one keeps the awaited one from running.
  const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  spins_ = options_.size <= cores ? kSpins : 0;
  try {
    if (options_.rank == 0) {
      create();
    } else {
      join();
    }
    wait_for_all_to_join();
  } catch (...) {
    if (base_ != nullptr) ::munmap(base_, bytes_);
    if (fd_ >= 0) ::close(fd_);
    if (made_) ::shm_unlink(options_.name.c_str());
    throw;
  }
  if (made_) ::shm_unlink(options_.name.c_str());
}

void ShmSegment::leave() {
  leaving_.store(true, std::memory_order_release);
  control(rank()).state.store(kLeft, std::memory_order_release);
  wake();
}

ShmSegment::~ShmSegment() {
  leave();
  ::munmap(base_, bytes_);
  ::close(fd_);
}

void ShmSegment::create() {
  const std::size_t bytes = scratch_offset(options_.size);
  remove_leftovers();
  if (const int other = ::shm_open(options_.name.c_str(), O_RDWR | O_CLOEXEC, 0); other >= 0) {
    const bool in_use = lock_is_held(other, 0);
    ::close(other);
    if (in_use) throw already_running(0);
    ::shm_unlink(options_.name.c_str());  // of a job that was killed while it started
  }
  fd_ = ::shm_open(options_.name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd_ < 0)
    throw storage_error(fmt::format("cannot make shared memory {}: {}", options_.name, std::strerror(errno)));
  made_ = true;
  struct flock lock = byte_lock(F_WRLCK, 0);
  if (::fcntl(fd_, F_OFD_SETLK, &lock) != 0)
    throw storage_error(fmt::format("cannot lock shared memory {}: {}", options_.name, std::strerror(errno)));
  // posix_fallocate, not ftruncate: too little of /dev/shm is an error now, not a bus error later.
  if (const int failure = ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes)); failure != 0) {
    throw Error(Status::kDoesNotFit,
                fmt::format("cannot take {} bytes of shared memory: {}", bytes, std::strerror(failure)))
        .mend("give the container more shared memory (docker run --shm-size, or --ipc host)");
  }
  map(bytes);
  header_->size = static_cast<std::uint64_t>(options_.size);
  header_->scratch = options_.scratch;
  for (int r = 0; r < options_.size; ++r) control(r).progress.store(now_ns(), std::memory_order_relaxed);
  control(0).state.store(kHere, std::memory_order_release);
  header_->ready.store(kReady, std::memory_order_release);
}

void ShmSegment::join() {
  const auto deadline = Clock::now() + std::chrono::duration<double>(options_.timeout_seconds);
  while (true) {
    fd_ = ::shm_open(options_.name.c_str(), O_RDWR | O_CLOEXEC, 0);
    struct stat status {};
    // Rank 0 holds its lock as long as it lives: without it, this is a leftover that it will replace.
    if (fd_ >= 0 && holds_lock(0) && ::fstat(fd_, &status) == 0 && status.st_size >= static_cast<off_t>(kPage)) {
      map(static_cast<std::size_t>(status.st_size));
      if (header_->ready.load(std::memory_order_acquire) == kReady) break;
      ::munmap(base_, bytes_);
      base_ = nullptr;
    }
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
    if (Clock::now() > deadline) {
      throw peer_lost(fmt::format("rank {} waited {:g} s for rank 0 to set up the shared memory of the job",
                                  options_.rank, options_.timeout_seconds))
          .mend("see why rank 0 did not start; --timeout waits longer");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (header_->size != static_cast<std::uint64_t>(options_.size) || header_->scratch != options_.scratch) {
    throw usage_error(fmt::format("rank {} was started as one of {} ranks, rank 0 as one of {}", options_.rank,
                                  options_.size, header_->size))
        .mend("start all ranks with the same number of ranks and the same program");
  }
  struct flock lock = byte_lock(F_WRLCK, options_.rank);
  if (::fcntl(fd_, F_OFD_SETLK, &lock) != 0) throw already_running(options_.rank);
  control(options_.rank).state.store(kHere, std::memory_order_release);
  wake();
}

void ShmSegment::wait_for_all_to_join() {
  for (int r = 0; r < size(); ++r) {
    const auto here = [&] { return control(r).state.load(std::memory_order_acquire) != kComing; };
    if (!here()) sleep_until(here, "the start of the job", r);
  }
  meet();
}

bool ShmSegment::holds_lock(int peer) const {
  return lock_is_held(fd_, peer);
}

void ShmSegment::wake() {
  // A read that writes: it comes after the arrival that was stored before, on every processor. (A fence would do, but
  // ThreadSanitizer does not know fences.)
  if (header_->waiters.fetch_add(0, std::memory_order_seq_cst) == 0) return;
  header_->wakes.fetch_add(1, std::memory_order_seq_cst);
  futex(&header_->wakes, FUTEX_WAKE, INT_MAX, nullptr);
}

void ShmSegment::arrive() {
  ++meetings_;
  Control& mine = control(rank());
  mine.progress.store(now_ns(), std::memory_order_relaxed);
  mine.arrived.store(meetings_, std::memory_order_release);
  wake();
}

bool ShmSegment::all_arrived() const {
  for (int r = 0; r < size(); ++r) {
    if (control(r).arrived.load(std::memory_order_acquire) < meetings_) return false;
  }
  return true;
}

void ShmSegment::wait_all() {
  if (spin([this] { return all_arrived(); })) return;
  sleep_until([this] { return all_arrived(); }, "a collective operation", -1);
}

void ShmSegment::wait_until(int peer, const char* what, const std::function<bool()>& ready) {
  if (spin(ready)) return;
  sleep_until(ready, what, peer);
}

template <typename Ready>
bool ShmSegment::spin(const Ready& ready) const {
  for (int i = 0; i < spins_; ++i) {
    if (ready()) return true;
    relax();
  }
  return ready();
}

void ShmSegment::sleep_until(const std::function<bool()>& ready, const char* what, int only_peer) {
  const auto begin = Clock::now();
  header_->waiters.fetch_add(1, std::memory_order_seq_cst);
  auto next_look = begin + kLookAround;
  try {
    while (true) {
      const std::uint32_t seen = header_->wakes.load(std::memory_order_seq_cst);
      if (ready()) break;
      if (header_->aborted.load(std::memory_order_acquire) == 2) throw peer_lost(header_->reason);
      if (leaving_.load(std::memory_order_acquire)) throw peer_lost("this rank has left the group");
      const timespec nap{0, std::chrono::nanoseconds(kLookAround).count()};
      futex(&header_->wakes, FUTEX_WAIT, seen, &nap);
      if (Clock::now() < next_look) continue;
      next_look = Clock::now() + kLookAround;
      if (ready()) break;
      // A peer may do what is awaited and leave in the moment between the two looks.
      if (const std::optional<Error> lost = lost_peer(what, only_peer); lost && !ready()) {
        // The others learn the reason, before they see no more than that this rank has left for it.
        publish(lost->message());
        throw *lost;
      }
    }
  } catch (...) {
    header_->waiters.fetch_sub(1, std::memory_order_seq_cst);
    throw;
  }
  header_->waiters.fetch_sub(1, std::memory_order_seq_cst);
  // Whoever waited for a slow rank has itself been idle through no fault of its own.
  progress();
  seconds_waited_ += std::chrono::duration<double>(Clock::now() - begin).count();
}

// A peer that will not come: dead, gone, or without a sign of progress.
std::optional<Error> ShmSegment::lost_peer(const char* what, int only_peer) const {
  for (int r = 0; r < size(); ++r) {
    if (r == rank() || (only_peer >= 0 && r != only_peer)) continue;
    const Control& peer = control(r);
    const bool came = only_peer < 0 && peer.arrived.load(std::memory_order_acquire) >= meetings_;
    if (came) continue;
    const std::uint32_t state = peer.state.load(std::memory_order_acquire);
    const bool gone = state == kLeft || (state == kHere && !holds_lock(r));
    if (gone && header_->aborted.load(std::memory_order_acquire) == 2) return peer_lost(header_->reason);
    if (state == kLeft) return peer_lost(fmt::format("rank {} has left while rank {} waits in {}", r, rank(), what));
    if (gone) {
      return peer_lost(fmt::format("rank {} died (seen by rank {} in {})", r, rank(), what))
          .mend(
              "its own error, if it gave one, says why; where a checkpoint was saved, --resume_from_checkpoint true "
              "goes on from it");
    }
    const std::uint64_t last = peer.progress.load(std::memory_order_relaxed);
    const std::uint64_t now = now_ns();
    const double quiet = now > last ? static_cast<double>(now - last) * 1e-9 : 0;
    if (quiet > options_.timeout_seconds) {
      return peer_lost(fmt::format("rank {} made no progress for {:.1f} s (rank {} waits for it in {})", r, quiet,
                                   rank(), what))
          .mend("see what that rank does; --timeout waits longer");
    }
  }
  return std::nullopt;
}

void ShmSegment::announce(const OperationMark& mark) {
  control(rank()).marks[(meetings_ + 1) % 2] = mark;
}

void ShmSegment::check_marks(const char* operation) const {
  const OperationMark& mine = control(rank()).marks[meetings_ % 2];
  for (int r = 0; r < size(); ++r) {
    if (control(r).marks[meetings_ % 2] == mine) continue;
    throw internal_error(fmt::format("rank {} is in {} and rank {} in another operation, or in one of another size",
                                     rank(), operation, r));
  }
}

void ShmSegment::progress() {
  control(rank()).progress.store(now_ns(), std::memory_order_relaxed);
}

void ShmSegment::look_around(bool left_too) {
  if (header_->aborted.load(std::memory_order_acquire) == 2) throw peer_lost(header_->reason);
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const std::uint32_t state = control(r).state.load(std::memory_order_acquire);
    const bool died = state == kHere && !holds_lock(r) && control(r).state.load(std::memory_order_acquire) == kHere;
    if (!died && !(left_too && state == kLeft)) continue;
    if (header_->aborted.load(std::memory_order_acquire) == 2) throw peer_lost(header_->reason);
    const Error lost = peer_lost(fmt::format("rank {} {} (seen by rank {})", r, died ? "died" : "has left", rank()));
    publish(lost.message());
    throw lost;
  }
}

void ShmSegment::abort(const std::string& reason) {
  publish(fmt::format("rank {} failed: {}", rank(), reason));
}

void ShmSegment::publish(const std::string& text) {
  std::uint32_t none = 0;
  if (!header_->aborted.compare_exchange_strong(none, 1)) return;  // the first reason stays
  const std::size_t length = std::min(text.size(), sizeof(header_->reason) - 1);
  std::memcpy(header_->reason, text.data(), length);
  header_->reason[length] = 0;
  header_->aborted.store(2, std::memory_order_release);
  wake();
}

}  // namespace convoy
