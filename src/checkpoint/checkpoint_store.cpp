#include "checkpoint/checkpoint_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_manifest.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kReplaced = ".replaced-";

Error system_failure(std::string_view doing, const fs::path& path) {
  return storage_error(fmt::format("cannot {} {}: {}", doing, path.string(), std::strerror(errno)));
}

// Runs an operation of std::filesystem, whose failures become storage errors.
template <typename Operation>
auto on_disk(const Operation& operation) {
  try {
    return operation();
  } catch (const fs::filesystem_error& failure) {
    const fs::path& path = failure.path1();
    throw storage_error(fmt::format("cannot make or move {}: {}", path.string(), failure.code().message()));
  }
}

// "checkpoint-12.tmp-x" with marker ".tmp-" → 12.
std::optional<std::int64_t> marked_step(const std::string& name, std::string_view marker) {
  const std::size_t cut = name.find(marker);
  if (cut == std::string::npos) return std::nullopt;
  return checkpoint_step(name.substr(0, cut));
}

// Different for each call on each host sharing the folder.
std::string unique_suffix() {
  static std::atomic<int> counter = 0;
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return fmt::format("{}-{:x}-{}", ::getpid(), static_cast<std::uint64_t>(now), counter++);
}

std::int64_t milliseconds_now() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::vector<fs::path> folders_in(const fs::path& parent) {
  std::vector<fs::path> folders;
  std::error_code failure;
  for (fs::directory_iterator it(parent, failure), end; !failure && it != end; it.increment(failure)) {
    if (it->is_directory(failure)) folders.push_back(it->path());
  }
  if (failure && failure != std::errc::no_such_file_or_directory) {
    throw storage_error(fmt::format("cannot list {}: {}", parent.string(), failure.message()));
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

// Takes a folder out of its name first, so that no half-removed checkpoint is ever seen under a checkpoint's name.
void remove_folder(const fs::path& folder) {
  fs::path doomed = folder;
  if (checkpoint_step(folder)) {
    doomed += fmt::format("{}{}", kTemporary, unique_suffix());
    fs::rename(folder, doomed);
  }
  fs::remove_all(doomed);
}

// Puts `fresh` in the place of `final_place`.
void exchange_into_place(const fs::path& fresh, const fs::path& final_place) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, final_place.c_str(), RENAME_EXCHANGE) == 0) {
    sync_path(final_place.parent_path());
    fs::remove_all(fresh);  // now the old one
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
    throw system_failure("put a checkpoint in place at", final_place);
  // A file system without the exchange: between the two renames the old one waits under a name that is put back.
  fs::path old = final_place;
  old += fmt::format("{}{}", kReplaced, unique_suffix());
  fs::rename(final_place, old);
  fs::rename(fresh, final_place);
  sync_path(final_place.parent_path());
  fs::remove_all(old);
}

enum class Lock { kTaken, kHeldElsewhere, kUnsupported };

Lock try_lock(int fd) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return Lock::kTaken;
  return errno == EWOULDBLOCK ? Lock::kHeldElsewhere : Lock::kUnsupported;
}

}  // namespace

std::optional<std::int64_t> checkpoint_step(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size();
  const auto [stop, failure] = std::from_chars(begin, end, step);
  if (failure != std::errc{} || stop != end || step < 0) return std::nullopt;
  return step;
}

CheckpointWriter::CheckpointWriter(fs::path parent, std::int64_t step) : parent_(std::move(parent)), step_(step) {
  folder_ = parent_ / fmt::format("{}{}{}{}", kPrefix, step, kTemporary, unique_suffix());
  std::error_code failure;
  fs::create_directory(folder_, failure);
  if (failure) {
    throw storage_error(fmt::format("cannot make a folder in {}: {}", parent_.string(), failure.message()))
        .mend("checkpoints need an output_dir that this user may write to");
  }
  lock_ = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ < 0) throw system_failure("open", folder_);
  try_lock(lock_);  // without locks here, leftovers cannot be told apart later and stay
}

CheckpointWriter::CheckpointWriter(CheckpointWriter&& other) noexcept
    : parent_(std::move(other.parent_)),
      folder_(std::exchange(other.folder_, {})),
      step_(other.step_),
      files_(std::move(other.files_)),
      lock_(std::exchange(other.lock_, -1)) {}

CheckpointWriter::~CheckpointWriter() {
  if (!folder_.empty()) {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  if (lock_ >= 0) ::close(lock_);
}

fs::path CheckpointWriter::prepare(const std::string& name) {
  require_inner_name(name, folder_.string());
  check(!folder_.empty(), "a committed checkpoint takes no more files");
  fs::path path = folder_ / name;
  on_disk([&] { fs::create_directories(path.parent_path()); });
  return path;
}

void CheckpointWriter::add_text(const std::string& name, std::string_view content) {
  HashingWriter out(prepare(name));
  out.write(content);
  FileDigest digest = out.close();
  digest.name = name;
  record(std::move(digest));
}

void CheckpointWriter::add_copy(const std::string& name, const fs::path& from) {
  FileDigest digest = copy_with_digest(from, prepare(name));
  digest.name = name;
  record(std::move(digest));
}

std::unique_ptr<HashingWriter> CheckpointWriter::stream(const std::string& name) {
  return std::make_unique<HashingWriter>(prepare(name));
}

void CheckpointWriter::record(FileDigest file) {
  require_inner_name(file.name, folder_.string());
  const bool taken =
      file.name == CheckpointManifest::kFileName ||
      std::any_of(files_.begin(), files_.end(), [&](const FileDigest& f) { return f.name == file.name; });
  if (taken) throw internal_error(fmt::format("the checkpoint already has a file '{}'", file.name));
  files_.push_back(std::move(file));
}

void CheckpointWriter::record(const std::vector<FileDigest>& files) {
  for (const FileDigest& file : files) record(file);
}

void CheckpointWriter::sync_folders() const {
  std::set<fs::path> folders = {folder_};
  for (const FileDigest& file : files_) {
    for (fs::path inner = fs::path(file.name).parent_path(); !inner.empty(); inner = inner.parent_path()) {
      folders.insert(folder_ / inner);
    }
  }
  for (const fs::path& folder : folders) sync_path(folder);
}

fs::path CheckpointWriter::commit() {
  check(!folder_.empty(), "a checkpoint is committed once");
  for (const FileDigest& file : files_) {
    std::error_code failure;
    const std::uint64_t size = fs::file_size(folder_ / file.name, failure);
    if (failure || size != file.size) {
      throw storage_error(fmt::format("a file of the checkpoint is not as it was written: {}",
                                      failure ? failure.message() : fmt::format("{} bytes, not {}", size, file.size)))
          .at((folder_ / file.name).string());
    }
    sync_path(folder_ / file.name);  // costs nothing where the writer has done it
  }
  sync_folders();
  HashingWriter out(folder_ / CheckpointManifest::kFileName);
  out.write(CheckpointManifest{step_, milliseconds_now(), files_}.to_text());
  out.close();
  sync_path(folder_);

  fs::path final_place = parent_ / fmt::format("{}{}", kPrefix, step_);
  on_disk([&] {
    if (fs::exists(final_place)) {
      exchange_into_place(folder_, final_place);
    } else {
      fs::rename(folder_, final_place);
    }
  });
  folder_.clear();
  sync_path(parent_);
  ::close(std::exchange(lock_, -1));
  return final_place;
}

CheckpointWriter CheckpointStore::begin(std::int64_t step, std::uint64_t expected_bytes) {
  check(step >= 0, "a checkpoint's step cannot be negative");
  on_disk([&] { fs::create_directories(output_dir_); });
  restore_replaced();
  clean_leftovers();
  require_free_space(output_dir_, expected_bytes);
  return {output_dir_, step};
}

void CheckpointStore::clean_leftovers() {
  for (const fs::path& folder : folders_in(output_dir_)) {
    if (!marked_step(folder.filename().string(), kTemporary)) continue;
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) continue;  // another process has just removed it
    const Lock lock = try_lock(fd);
    if (lock == Lock::kTaken) {
      std::error_code failure;
      fs::remove_all(folder, failure);
      if (failure) {
        log_warning("cannot remove {}, left by an interrupted save: {}", folder.string(), failure.message());
      } else {
        log_info("removed {}, left by an interrupted save", folder.string());
      }
    } else if (lock == Lock::kUnsupported) {
      log_warning("{} may be left by an interrupted save; this file system has no locks to tell, so remove it by hand",
                  folder.string());
    }
    ::close(fd);
  }
}

void CheckpointStore::restore_replaced() {
  for (const fs::path& folder : folders_in(output_dir_)) {
    const std::optional<std::int64_t> step = marked_step(folder.filename().string(), kReplaced);
    if (!step) continue;
    const fs::path final_place = output_dir_ / fmt::format("{}{}", kPrefix, *step);
    std::error_code failure;
    if (fs::exists(final_place, failure)) {
      fs::remove_all(folder, failure);
    } else {
      fs::rename(folder, final_place, failure);
      if (!failure) log_info("put {} back: the save that was to replace it was interrupted", final_place.string());
    }
    if (failure) log_warning("cannot tidy up {}: {}", folder.string(), failure.message());
  }
}

std::vector<CheckpointInfo> CheckpointStore::list() const {
  std::vector<CheckpointInfo> whole;
  for (const fs::path& folder : folders_in(output_dir_)) {
    const std::optional<std::int64_t> step = checkpoint_step(folder);
    if (step && checkpoint_problems(folder, false).empty()) whole.push_back({*step, folder});
  }
  std::sort(whole.begin(), whole.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return whole;
}

std::vector<std::string> CheckpointStore::verify(const fs::path& folder) {
  return checkpoint_problems(folder, true);
}

std::optional<CheckpointInfo> CheckpointStore::newest_whole(std::vector<DamagedCheckpoint>* damaged) {
  restore_replaced();
  std::vector<CheckpointInfo> candidates;
  for (const fs::path& folder : folders_in(output_dir_)) {
    if (const std::optional<std::int64_t> step = checkpoint_step(folder)) candidates.push_back({*step, folder});
  }
  std::sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  for (const CheckpointInfo& candidate : candidates) {
    std::vector<std::string> problems = verify(candidate.folder);
    if (problems.empty()) return candidate;
    log_warning("{} cannot be used: {}", candidate.folder.string(), fmt::join(problems, "; "));
    if (damaged != nullptr) damaged->push_back({candidate.folder, std::move(problems)});
  }
  return std::nullopt;
}

std::vector<fs::path> CheckpointStore::prune(std::optional<int> save_total_limit, std::optional<std::int64_t> best) {
  std::vector<fs::path> removed;
  if (!save_total_limit || *save_total_limit < 1) return removed;
  // By the time of saving, as Hugging Face does: after a restart from an earlier step the lower number is the newer
  // one.
  std::vector<std::pair<std::pair<std::int64_t, std::int64_t>, CheckpointInfo>> saved;
  for (const CheckpointInfo& info : list()) {
    const fs::path path = info.folder / CheckpointManifest::kFileName;
    saved.push_back({{CheckpointManifest::parse(read_file(path), path.string()).saved_at, info.step}, info});
  }
  std::sort(saved.begin(), saved.end(), [](const auto& a, const auto& b) { return a.first < b.first; });

  std::size_t keep = static_cast<std::size_t>(*save_total_limit);
  const auto is_best = [&](const auto& entry) { return best && entry.second.step == *best; };
  if (const auto found = std::find_if(saved.begin(), saved.end(), is_best); found != saved.end() && saved.size() > 1) {
    if (found != saved.end() - 1) {
      std::rotate(found, found + 1, saved.end() - 1);  // second to last
      keep = std::max<std::size_t>(keep, 2);
    }
  }
  for (std::size_t i = 0; i + keep < saved.size(); ++i) {
    on_disk([&] { remove_folder(saved[i].second.folder); });
    removed.push_back(saved[i].second.folder);
  }
  if (!removed.empty()) sync_path(output_dir_);
  return removed;
}

}  // namespace convoy
