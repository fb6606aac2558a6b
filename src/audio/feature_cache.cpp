#include "audio/feature_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/hash.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

struct Header {
  std::array<char, 8> magic = {'C', 'O', 'N', 'V', 'M', 'E', 'L', '1'};
  std::uint64_t hash = 0;  // of the values
  std::int64_t bins = 0, frames = 0, valid_frames = 0;
  float silence = 0;
  std::uint32_t unused = 0;
};
static_assert(sizeof(Header) == 48);

std::span<const std::byte> bytes_of(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

FeatureCache::FeatureCache(fs::path folder) : folder_(std::move(folder)) {
  std::error_code failure;
  for (unsigned i = 0; i < 256 && !failure; ++i) fs::create_directories(folder_ / fmt::format("{:02x}", i), failure);
  if (failure) {
    throw storage_error(fmt::format("the cache of features cannot be made: {}", failure.message()))
        .at(folder_.string());
  }
}

fs::path FeatureCache::path(std::uint64_t key) const {
  const std::string name = hex64(key);
  return folder_ / name.substr(0, 2) / (name.substr(2) + ".mel");
}

std::uint64_t FeatureCache::key(const Utterance& utterance, double speed, const LogMelConfig& config) const {
  std::error_code failure;
  const std::uint64_t size = fs::file_size(utterance.audio, failure);
  const auto changed = failure ? 0 : fs::last_write_time(utterance.audio, failure).time_since_epoch().count();
  if (failure)
    throw storage_error(fmt::format("the recording cannot be read: {}", failure.message())).at(utterance.audio);
  return hash64(fmt::format("1 {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", fs::absolute(utterance.audio).string(),
                            size, changed, utterance.offset, utterance.size, utterance.start, utterance.seconds, speed,
                            config.feature_size, config.sampling_rate, config.hop_length, config.n_fft,
                            config.chunk_length, config.do_normalize, sizeof(Header)));
}

std::optional<Features> FeatureCache::get(std::uint64_t key) const {
  std::ifstream file(path(key), std::ios::binary | std::ios::ate);
  if (!file) return std::nullopt;
  const auto size = static_cast<std::uint64_t>(file.tellg());
  file.seekg(0);
  Header header, expected;
  if (size < sizeof(header) || !file.read(reinterpret_cast<char*>(&header), sizeof(header))) return std::nullopt;
  if (header.magic != expected.magic || header.bins < 1 || header.frames < 1 || header.bins > 1024 ||
      header.frames > (std::int64_t{1} << 40) / header.bins || header.valid_frames < 0 ||
      header.valid_frames > header.frames) {
    return std::nullopt;
  }
  const std::uint64_t count = static_cast<std::uint64_t>(header.bins * header.frames);
  if (size != sizeof(header) + count * sizeof(float)) return std::nullopt;
  Features features{header.bins, header.frames, header.valid_frames, header.silence, std::vector<float>(count)};
  if (!file.read(reinterpret_cast<char*>(features.values.data()), static_cast<std::streamsize>(count * sizeof(float))))
    return std::nullopt;
  if (hash64(bytes_of(features.values)) != header.hash) return std::nullopt;
  return features;
}

void FeatureCache::put(std::uint64_t key, const Features& features) const {
  static std::atomic<std::uint64_t> counter{0};
  const fs::path to = path(key);
  // Renamed when whole; a crash of the machine may still leave a damaged file, which the hash shows.
  fs::path temporary = to;
  temporary += fmt::format(".{}.{}", ::getpid(), ++counter);
  Header header;
  header.hash = hash64(bytes_of(features.values));
  header.bins = features.bins;
  header.frames = features.frames;
  header.valid_frames = features.valid_frames;
  header.silence = features.silence;
  std::ofstream file(temporary, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header), sizeof(header));
  file.write(reinterpret_cast<const char*>(features.values.data()),
             static_cast<std::streamsize>(features.values.size() * sizeof(float)));
  file.close();
  std::error_code failure;
  const bool written = static_cast<bool>(file);
  if (written) fs::rename(temporary, to, failure);
  if (!written || failure) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw storage_error("features cannot be written to their cache")
        .at(to.string())
        .mend("make room on the disk, or turn the cache off");
  }
}

}  // namespace convoy
