#include "data/token_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/parallel.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Counts up whenever the same input gives other tokens than before.
constexpr int kEncodingVersion = 1;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string key_of(const SourceOptions& options) {
  const FieldNames& f = options.fields;
  std::string key = fmt::format("kind={} unit={} header={} quoting={} skip={}", name_of(options.kind),
                                name_of(options.text_unit), options.header, options.quoting, options.skip_bad_samples);
  for (const std::string* name :
       {&f.text, &f.messages, &f.role, &f.content, &f.metadata, &f.weight, &f.conversations, &f.from, &f.value,
        &f.instruction, &f.input, &f.output, &f.system, &f.prompt, &f.completion, &f.label})
    key += fmt::format(" {}:{}", name->size(), *name);
  return key;
}

// Some megabytes of samples: enough to occupy every core, little enough to hold two of them.
std::vector<Sample> read_chunk(SampleReader& reader) {
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  constexpr std::size_t kSamples = 16384;
  std::vector<Sample> chunk;
  std::size_t bytes = 0;
  Sample sample;
  while (bytes < kBytes && chunk.size() < kSamples && reader.next(sample)) {
    for (const std::string& ending : sample.endings) bytes += ending.size();
    bytes += sample.text.size() + sample.prompt.size() + sample.completion.size();
    for (const ChatMessage& message : sample.messages) bytes += message.content.size();
    chunk.push_back(std::move(sample));
  }
  return chunk;
}

struct Encoded {
  EncodedSample sample;
  std::optional<Error> failure;
};

std::vector<Encoded> encode_chunk(const std::vector<Sample>& chunk, const SampleEncoder& encoder) {
  std::vector<Encoded> encoded(chunk.size());
  parallel_for(static_cast<std::int64_t>(chunk.size()), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    try {
      encoded[at].sample = encoder.encode(chunk[at]);
    } catch (const Error& failure) {
      if (failure.status() != Status::kData) throw;
      encoded[at].failure = failure;
    }
  });
  return encoded;
}

// The lock is advisory and goes with the descriptor, so a killed process leaves none behind.
class FileLock {
 public:
  explicit FileLock(const fs::path& path) : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (fd_ < 0) {
      const int code = errno;
      throw storage_error(fmt::format("cannot create {}: {}", path.string(), std::strerror(code)))
          .mend("choose a folder for the token cache that can be written to");
    }
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) {
      held_ = true;
    } else if (errno == EWOULDBLOCK) {
      held_ = wait_for_other(path);
    }
    if (!held_) log_warning("no locks on the file system of {}: every process tokenises for itself", path.string());
  }
  ~FileLock() { ::close(fd_); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  bool held() const { return held_; }

 private:
  // Waits as long as it takes, for large data take hours, but not silently: who waits for a process that hangs learns
  // which file it holds.
  bool wait_for_other(const fs::path& path) const {
    log_info("waiting for another process that tokenises the same data (it holds {})", path.string());
    const Clock::time_point start = Clock::now();
    Clock::time_point said = start;
    while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (Clock::now() - said < std::chrono::minutes(1)) continue;
      said = Clock::now();
      log_warning(
          "still waiting after {:.0f} s for the process that holds {}; end it if it hangs, or choose another "
          "cache_dir",
          seconds_since(start), path.string());
    }
    return true;
  }

  int fd_;
  bool held_ = false;
};

// The data, if they are there and whole; `log` says whether to tell why not.
std::shared_ptr<const TokenData> try_open(const fs::path& path, std::uint64_t key, bool log) {
  if (!fs::exists(path)) return nullptr;
  try {
    std::shared_ptr<const TokenData> data = TokenData::open(path);
    if (data->key() == key) return data;
    if (log) log_warning("the token cache {} belongs to other data; it is made anew", path.string());
  } catch (const Error& failure) {
    if (failure.status() != Status::kData) throw;
    if (log) log_warning("{}; it is made anew", failure.message());
  }
  return nullptr;
}

// What killed processes left. Only called under the lock, when nobody else can be writing.
void remove_leftovers(const fs::path& path) {
  const std::string prefix = path.filename().string() + ".tmp";
  std::error_code ignored;  // a file that cannot be removed does no harm but for its size
  for (const fs::directory_entry& entry : fs::directory_iterator(path.parent_path(), ignored)) {
    if (entry.path().filename().string().starts_with(prefix)) fs::remove(entry.path(), ignored);
  }
}

void tokenize_to_file(const fs::path& path, const SourceOptions& sources, const SampleEncoder& encoder,
                      std::uint64_t key) {
  static std::atomic<int> counter{0};
  std::array<char, 64> host{};
  ::gethostname(host.data(), host.size() - 1);
  fs::path temporary = path;
  temporary += fmt::format(".tmp-{}-{}-{}", host.data(), ::getpid(), counter++);
  try {
    FileWriter file(temporary);
    // Documents are short; collected they make fewer system calls.
    std::string pending;
    const auto flush = [&] {
      file.write(pending);
      pending.clear();
    };
    TokenWriter writer(
        [&](std::span<const std::byte> bytes) {
          pending.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          if (pending.size() > (std::size_t{4} << 20)) flush();
        },
        encoder.tokenizer().vocab_size(), key);
    writer.finish(tokenize(sources, encoder, writer));
    flush();
    file.close();
    std::error_code failure;
    fs::rename(temporary, path, failure);
    if (failure)
      throw storage_error(
          fmt::format("cannot rename {} to {}: {}", temporary.string(), path.string(), failure.message()));
    sync_path(path.parent_path());
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

}  // namespace

std::uint64_t token_key(const SourceOptions& sources, const SampleEncoder& encoder) {
  const std::vector<SourceFile> files = resolve_sources(sources);
  std::vector<std::uint64_t> hashes(files.size());
  parallel_for(static_cast<std::int64_t>(files.size()), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    hashes[at] = hash64(MappedFile(files[at].path).bytes());
  });
  std::string text = fmt::format("encoding {} tokenizer {} {} {}", kEncodingVersion,
                                 hex64(encoder.tokenizer().fingerprint()), encoder.settings().key(), key_of(sources));
  for (std::size_t i = 0; i < files.size(); ++i)
    text += fmt::format(" {} {}", name_of(files[i].format), hex64(hashes[i]));
  return hash64(text);
}

DataReport tokenize(const SourceOptions& sources, const SampleEncoder& encoder, TokenWriter& writer) {
  // Reading goes on in the background while a chunk is encoded, so it counts in a report of its own.
  DataReport read, report;
  SampleReader reader(sources, read);
  const Clock::time_point start = Clock::now();
  double logged = 0;
  std::vector<Sample> chunk = read_chunk(reader);
  while (!chunk.empty()) {
    std::future<std::vector<Sample>> following = std::async(std::launch::async, [&] { return read_chunk(reader); });
    const std::vector<Encoded> encoded = encode_chunk(chunk, encoder);
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      const EncodedSample& sample = encoded[i].sample;
      if (encoded[i].failure) {
        Error failure = *encoded[i].failure;
        failure.at(chunk[i].where);
        if (!sources.skip_bad_samples) throw with_skip_remedy(failure);
        report.skip("malformed", failure.where(), failure.message());
        continue;
      }
      const std::int64_t targets = count_targets(sample);
      if (targets == 0) {
        report.skip("no target", chunk[i].where, "no token to predict");
        continue;
      }
      writer.add(sample);
      ++report.samples;
      report.tokens += static_cast<std::int64_t>(sample.ids.size());
      report.targets += targets;
    }
    chunk = following.get();
    if (const double now = seconds_since(start); now > logged + 30) {
      logged = now;
      log_info("tokenising: {} samples, {} tokens, {:.0f} s", report.samples, report.tokens, now);
    }
  }
  read.merge(report);
  return read;
}

std::shared_ptr<const TokenData> tokenize_to_memory(const SourceOptions& sources, const SampleEncoder& encoder) {
  std::string bytes;
  TokenWriter writer(
      [&](std::span<const std::byte> more) { bytes.append(reinterpret_cast<const char*>(more.data()), more.size()); },
      encoder.tokenizer().vocab_size(), 0);
  writer.finish(tokenize(sources, encoder, writer));
  return TokenData::from_memory(std::move(bytes), "tokens in memory");
}

std::shared_ptr<const TokenData> load_or_tokenize(const fs::path& folder, const SourceOptions& sources,
                                                  const SampleEncoder& encoder) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) {
    throw storage_error(fmt::format("cannot create the folder {}: {}", folder.string(), failure.message()))
        .mend("choose a folder for the token cache that can be written to");
  }
  const std::uint64_t key = token_key(sources, encoder);
  const fs::path path = folder / fmt::format("tokens-{}.bin", hex64(key));
  if (std::shared_ptr<const TokenData> data = try_open(path, key, false)) return data;
  const FileLock lock(folder / fmt::format("tokens-{}.lock", hex64(key)));
  if (std::shared_ptr<const TokenData> data = try_open(path, key, true)) return data;
  if (lock.held()) remove_leftovers(path);
  const Clock::time_point start = Clock::now();
  log_info("tokenising into {}", path.string());
  tokenize_to_file(path, sources, encoder, key);
  std::shared_ptr<const TokenData> data = TokenData::open(path);
  log_info("tokenised {} samples to {} tokens in {:.1f} s", data->documents(), data->tokens(), seconds_since(start));
  return data;
}

}  // namespace convoy
