// Seconds of recordings per second of the clock: each step of the way from a 48 kHz MP3 file to a batch of features,
// and the whole loader by threads. The recordings are made here: eight of 30 s, of noise in syllables, at 64 kbit/s (as
// Common Voice).
//   audio_bench [SECONDS_EACH]
#include <fmt/format.h>
#include <sndfile.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>

#include "audio/feature_loader.h"
#include "audio/manifest.h"
#include "audio/resample.h"
#include "base/error.h"
#include "base/files.h"
#include "base/random.h"

namespace {

using namespace convoy;

constexpr int kRate = 48000, kSeconds = 30, kFiles = 8;

void write_mp3(const std::filesystem::path& path, std::uint64_t seed) {
  RandomStream random(seed, 0);
  std::vector<float> samples(static_cast<std::size_t>(kRate) * kSeconds);
  float low = 0, pitch = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double t = static_cast<double>(i) / kRate;
    low += 0.15F * (random.uniform() - 0.5F - low);
    pitch += static_cast<float>(120 + 40 * std::sin(3 * t)) / kRate;
    pitch -= std::floor(pitch);
    const auto loud = static_cast<float>(std::max(0.0, std::sin(2 * 3.14159 * 3.3 * t)));
    samples[i] = loud * (low + 0.3F * (pitch - 0.5F));
  }
  SF_INFO info{};
  info.samplerate = kRate;
  info.channels = 1;
  info.format = SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III;
  SNDFILE* file = sf_open(path.c_str(), SFM_WRITE, &info);
  if (file == nullptr) throw storage_error(fmt::format("{}: {}", path.string(), sf_strerror(nullptr)));
  for (std::size_t at = 0; at < samples.size(); at += 4096) {
    sf_writef_float(file, samples.data() + at,
                    static_cast<sf_count_t>(std::min<std::size_t>(4096, samples.size() - at)));
  }
  sf_close(file);
}

struct Rate {
  double wall = 0, core = 0;  // audio seconds per second of the clock, and per second of processor time
};

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Calls `body`, which handles `audio_seconds`, again and again for `seconds`. The first calls, some of whose work may
// be done ahead or be left behind, are not counted.
Rate rate_of(double seconds, double audio_seconds, const std::function<void()>& body) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 4; ++i) body();
  const auto begin = Clock::now();
  const double processor = processor_seconds();
  double handled = 0, elapsed = 0;
  while (elapsed < seconds) {
    body();
    handled += audio_seconds;
    elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  return {handled / elapsed, handled / (processor_seconds() - processor)};
}

void report(const std::string& what, const Rate& rate) {
  fmt::print("{:<44} {:>9.0f} audio seconds per second, {:>9.0f} per second of a core\n", what, rate.wall, rate.core);
}

}  // namespace

int main(int argc, char** argv) try {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 2;
  std::string pattern = (std::filesystem::temp_directory_path() / "convoy_audio_bench_XXXXXX").string();
  const std::filesystem::path folder = ::mkdtemp(pattern.data());
  std::string manifest;
  for (int i = 0; i < kFiles; ++i) {
    write_mp3(folder / fmt::format("{}.mp3", i), static_cast<std::uint64_t>(i));
    manifest += fmt::format("{{\"audio\": \"{}.mp3\", \"text\": \"\"}}\n", i);
  }
  std::ofstream(folder / "m.jsonl") << manifest;
  std::vector<Utterance> utterances = read_manifest(folder / "m.jsonl");
  measure_durations(utterances);

  const std::string mp3 = read_file(folder / "0.mp3");
  const auto bytes = std::as_bytes(std::span(mp3.data(), mp3.size()));
  fmt::print("48 kHz MP3, {} kbit/s, {:.3f} s\n", mp3.size() * 8 / 1000 / kSeconds, utterances[0].duration);
  const Audio original = decode_audio(bytes, "mp3", {.sampling_rate = 0});
  const std::vector<float> wave = resample(original.samples, kRate, 16000);
  report("header (probe_audio)", rate_of(seconds, kSeconds, [&] { probe_audio(bytes, "mp3"); }));
  report("decode", rate_of(seconds, kSeconds, [&] { decode_audio(bytes, "mp3", {.sampling_rate = 0}); }));
  report("resample 48 to 16 kHz", rate_of(seconds, kSeconds, [&] { resample(original.samples, kRate, 16000); }));
  for (const int bins : {80, 128}) {
    const LogMel log_mel({.feature_size = bins});
    report(fmt::format("log-mel, {} bins", bins), rate_of(seconds, kSeconds, [&] { log_mel.unpadded(wave); }));
  }
  const auto shared = std::make_shared<const std::vector<Utterance>>(std::move(utterances));
  for (const int threads : {1, 2}) {
    for (const bool cached : {false, true}) {
      FeatureLoaderOptions options;
      options.threads = threads;
      if (cached) options.features.cache = folder / "cache";
      FeatureLoader loader(shared, {.feature_size = 128}, {.budget = std::int64_t{kFiles} * 3100}, options);
      report(fmt::format("loader, 128 bins, {} thread{}{}", threads, threads > 1 ? "s" : "",
                         cached ? ", from the cache" : "")
                 .c_str(),
             rate_of(seconds, kSeconds * kFiles, [&] { loader.next(); }));
    }
  }
  std::filesystem::remove_all(folder);
  return 0;
} catch (const std::exception& failure) {
  fmt::print(stderr, "audio_bench: {}\n", failure.what());
  return 1;
}
