#include "audio/decode.h"

#include <fmt/format.h>
#include <sndfile.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>

#include "audio/container.h"
#include "audio/resample.h"
#include "base/error.h"
#include "base/files.h"

namespace convoy {
namespace {

// Rates beyond these come from damaged headers, and would blow a small file up to gigabytes.
constexpr int kLowestRate = 1000, kHighestRate = 1'000'000;

// A recording in memory, as libsndfile's virtual file.
struct MemoryFile {
  std::span<const std::byte> bytes;
  sf_count_t at = 0;

  sf_count_t size() const { return static_cast<sf_count_t>(bytes.size()); }
  static MemoryFile& of(void* user) { return *static_cast<MemoryFile*>(user); }

  static sf_count_t length(void* user) { return of(user).size(); }
  static sf_count_t tell(void* user) { return of(user).at; }
  static sf_count_t write(const void*, sf_count_t, void*) { return 0; }
  static sf_count_t seek(sf_count_t offset, int whence, void* user) {
    MemoryFile& file = of(user);
    const sf_count_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? file.at : file.size();
    // Headers of damaged files ask for positions far outside.
    if (offset < -base || offset > file.size() - base) return -1;
    return file.at = base + offset;
  }
  static sf_count_t read(void* to, sf_count_t count, void* user) {
    MemoryFile& file = of(user);
    const sf_count_t n = std::clamp<sf_count_t>(count, 0, file.size() - file.at);
    if (n > 0) std::memcpy(to, file.bytes.data() + file.at, static_cast<std::size_t>(n));
    file.at += n;
    return n;
  }
};

class Recording {
 public:
  Recording(std::span<const std::byte> bytes, const std::string& name) : name_(name), memory_{bytes, 0} {
    if (bytes.empty()) throw fault("the file is empty", "record or fetch it again");
    require_known_container(bytes, name);
    SF_VIRTUAL_IO io{MemoryFile::length, MemoryFile::seek, MemoryFile::read, MemoryFile::write, MemoryFile::tell};
    file_.reset(sf_open_virtual(&io, SFM_READ, &info_, &memory_));
    if (file_ == nullptr) {
      std::string_view why = sf_strerror(nullptr);
      while (why.ends_with('.') || why.ends_with('\n')) why.remove_suffix(1);
      throw fault(fmt::format("not a recording that can be read ({})", why),
                  "use WAV, FLAC, Ogg Vorbis, Opus or MP3; or fetch the file again if it is one of these");
    }
    if (info_.samplerate < kLowestRate || info_.samplerate > kHighestRate || info_.channels < 1) {
      throw fault(fmt::format("the header states {} Hz and {} channels", info_.samplerate, info_.channels),
                  "the file is damaged; fetch it again");
    }
  }

  AudioInfo info() const {
    AudioInfo info;
    info.sampling_rate = info_.samplerate;
    info.channels = info_.channels;
    if (info_.frames >= 0 && info_.frames != SF_COUNT_MAX) info.frames = info_.frames;
    info.format = format_name(info_.format);
    return info;
  }

  // Passes over samples from the start. False if the recording is not that long.
  bool skip(std::int64_t frames) { return sf_seek(file_.get(), frames, SEEK_SET) == frames; }

  // The next samples of the mean of the channels, up to out.size(); fewer only at the end.
  std::size_t read(std::span<float> out) {
    const auto channels = static_cast<std::size_t>(info_.channels);
    block_.resize(out.size() * channels);
    std::size_t n = 0;
    while (n < out.size()) {  // decoders may return at the end of a packet
      const sf_count_t got =
          sf_readf_float(file_.get(), block_.data() + n * channels, static_cast<sf_count_t>(out.size() - n));
      if (got <= 0) break;
      n += static_cast<std::size_t>(got);
    }
    const float share = 1.0F / static_cast<float>(channels);
    for (std::size_t i = 0; i < n; ++i) {
      float sum = 0;
      for (std::size_t c = 0; c < channels; ++c) sum += block_[i * channels + c];
      out[i] = sum * share;
    }
    return n;
  }

  // What the decoder complains of, or "".
  std::string complaint() const { return sf_error(file_.get()) == SF_ERR_NO_ERROR ? "" : sf_strerror(file_.get()); }

  Error fault(std::string what, const std::string& remedy) const {
    return data_error(std::move(what)).at(name_).mend(remedy);
  }

 private:
  struct Close {
    void operator()(SNDFILE* file) const { sf_close(file); }
  };

  static std::string format_name(int format) {
    SF_FORMAT_INFO major{}, minor{};
    major.format = format & SF_FORMAT_TYPEMASK;
    minor.format = format & SF_FORMAT_SUBMASK;
    const bool known = sf_command(nullptr, SFC_GET_FORMAT_INFO, &major, sizeof(major)) == 0 &&
                       sf_command(nullptr, SFC_GET_FORMAT_INFO, &minor, sizeof(minor)) == 0;
    return known ? fmt::format("{}, {}", major.name, minor.name) : "unknown";
  }

  std::string name_;
  MemoryFile memory_;
  SF_INFO info_{};
  std::unique_ptr<SNDFILE, Close> file_;
  std::vector<float> block_;
};

std::string clock(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  return seconds < 60 ? fmt::format("{:.2f} s", seconds)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

void check_options(const DecodeOptions& options) {
  const auto valid = [](double value) { return std::isfinite(value) && value >= 0; };
  if (options.sampling_rate != 0 && (options.sampling_rate < kLowestRate || options.sampling_rate > kHighestRate)) {
    throw usage_error(fmt::format("a sampling rate of {} Hz is asked for", options.sampling_rate))
        .mend(fmt::format("give one from {} to {}", kLowestRate, kHighestRate));
  }
  if (!(options.speed >= 0.25 && options.speed <= 4)) {
    throw usage_error(fmt::format("a speed of {} is asked for", options.speed)).mend("give one from 0.25 to 4");
  }
  if (!valid(options.start) || !valid(options.seconds) || !valid(options.max_seconds)) {
    throw usage_error("start, seconds and max_seconds must be finite and not negative");
  }
}

}  // namespace

bool Audio::silent() const {
  return std::all_of(samples.begin(), samples.end(), [](float sample) { return sample == 0; });
}

AudioInfo probe_audio(std::span<const std::byte> bytes, const std::string& name) {
  return Recording(bytes, name).info();
}

Audio decode_audio(std::span<const std::byte> bytes, const std::string& name, const DecodeOptions& options) {
  check_options(options);
  Recording recording(bytes, name);
  Audio audio;
  audio.source = recording.info();
  const AudioInfo& source = audio.source;
  audio.sampling_rate = options.sampling_rate != 0 ? options.sampling_rate : source.sampling_rate;
  if (source.frames == 0) throw recording.fault("the recording holds no samples", "leave it out of the manifest");

  const double rate = source.sampling_rate;
  const auto frames_of = [&](double seconds) { return std::llround(std::min(seconds, 1e9) * rate); };
  const std::int64_t start = frames_of(options.start);
  const auto too_short = [&] {
    return recording.fault(fmt::format("a part from {} on is asked for, and the recording lasts {}",
                                       clock(options.start), clock(source.seconds())),
                           "check the start times of the manifest");
  };
  if (start > 0 && ((source.frames >= 0 && start >= source.frames) || !recording.skip(start))) throw too_short();
  // Samples to read; a part that reaches past the end by more than rounding is an error, as a short recording is.
  std::int64_t wanted = source.frames >= 0 ? source.frames - start : INT64_MAX;
  if (options.seconds > 0) {
    const std::int64_t part = frames_of(options.seconds);
    const std::int64_t slack = source.sampling_rate / 10;
    if (part > wanted + slack && !options.allow_truncated) {
      throw recording.fault(fmt::format("a part of {} from {} on is asked for, and the recording lasts {}",
                                        clock(options.seconds), clock(options.start), clock(source.seconds())),
                            "check the times of the manifest");
    }
    wanted = std::min(wanted, part);
  }
  const bool limited = options.max_seconds > 0;
  const std::int64_t limit = limited ? frames_of(options.max_seconds) : INT64_MAX;
  const auto too_long = [&](std::int64_t frames) {
    return recording.fault(
        fmt::format("the recording lasts {}{}, over the limit of {}", frames == wanted ? "" : "over ",
                    clock(static_cast<double>(frames) / rate), clock(options.max_seconds)),
        "cut it into utterances, or leave it out of the manifest");
  };
  if (wanted > limit && wanted != INT64_MAX) throw too_long(wanted);

  Resampler resampler(rate * options.speed, audio.sampling_rate);
  constexpr std::size_t kBlock = 1 << 13, kMostReserved = std::size_t{1} << 24;
  if (wanted != INT64_MAX) {
    const double expected = static_cast<double>(wanted) * audio.sampling_rate / (rate * options.speed);
    audio.samples.reserve(static_cast<std::size_t>(std::min<double>(expected + (1 << 15), kMostReserved)));
  }
  std::vector<float> block(kBlock);
  std::int64_t done = 0;
  while (done < wanted) {
    const auto ask = static_cast<std::size_t>(std::min<std::int64_t>(kBlock, wanted - done));
    const std::size_t got = recording.read(std::span(block).first(ask));
    for (std::size_t i = 0; i < got; ++i) {
      if (!std::isfinite(block[i])) {
        throw recording.fault(
            fmt::format("sample {} is not a finite number", start + done + static_cast<std::int64_t>(i)),
            "write the recording anew");
      }
    }
    done += static_cast<std::int64_t>(got);
    if (done > limit) throw too_long(done);
    resampler.add(std::span(block).first(got), audio.samples);
    if (got < ask) break;
  }
  resampler.finish(audio.samples);

  // A few samples less than stated are the encoder's padding, which not every header counts.
  const std::int64_t missing = wanted == INT64_MAX ? 0 : wanted - done;
  const std::string complaint = recording.complaint();
  const bool to_the_end = options.seconds == 0;
  const std::string cut = to_the_end ? missing_end(bytes) : "";
  audio.truncated =
      missing > std::max<std::int64_t>(source.sampling_rate / 20, 2304) || !complaint.empty() || !cut.empty();
  if (audio.truncated && !options.allow_truncated) {
    const std::string_view reason = !cut.empty() ? cut : complaint;
    throw recording.fault(
        fmt::format("the recording is damaged or cut short: {} could be read{}{}{}",
                    clock(static_cast<double>(done) / rate),
                    source.frames >= 0 ? fmt::format(" of {}", clock(static_cast<double>(start + wanted) / rate)) : "",
                    reason.empty() ? "" : "; ", reason),
        "fetch it again, or leave it out of the manifest");
  }
  if (done == 0) throw recording.fault("the recording holds no samples", "leave it out of the manifest");
  return audio;
}

Audio decode_audio(const std::filesystem::path& file, const DecodeOptions& options) {
  const MappedFile mapped(file);
  return decode_audio(mapped.bytes(), file.string(), options);
}

}  // namespace convoy
