#include "audio/log_mel.h"

#include <fmt/format.h>
#include <kiss_fftr.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numbers>

#include "base/error.h"

namespace convoy {
namespace {

constexpr float kFloor = 1e-10F;  // of the power, before the logarithm

double hertz_to_mel(double hertz) {  // Slaney's scale: linear to 1000 Hz, logarithmic above
  return hertz < 1000 ? 3 * hertz / 200 : 15 + 27 * std::log(hertz / 1000) / std::log(6.4);
}
double mel_to_hertz(double mel) {
  return mel < 15 ? 200 * mel / 3 : 1000 * std::exp(std::log(6.4) * (mel - 15) / 27);
}

// One triangle: weights of the frequency bins first, first + 1, …
struct Filter {
  std::size_t first = 0;
  std::vector<float> weights;
};

std::vector<Filter> mel_filters(const LogMelConfig& config) {
  const auto bins = static_cast<std::size_t>(config.feature_size);
  const double top = hertz_to_mel(config.sampling_rate / 2.0), low = hertz_to_mel(0);
  std::vector<double> corners(bins + 2);
  for (std::size_t i = 0; i < corners.size(); ++i) {
    corners[i] = mel_to_hertz(low + (top - low) * static_cast<double>(i) / static_cast<double>(bins + 1));
  }
  std::vector<Filter> filters(bins);
  for (std::size_t m = 0; m < bins; ++m) {
    const double left = corners[m], middle = corners[m + 1], right = corners[m + 2];
    for (int k = 0; k <= config.n_fft / 2; ++k) {
      const double hertz = static_cast<double>(k) * config.sampling_rate / config.n_fft;
      const double rise = (hertz - left) / (middle - left), fall = (right - hertz) / (right - middle);
      const double weight = std::min(rise, fall);
      if (weight <= 0) continue;
      if (filters[m].weights.empty()) filters[m].first = static_cast<std::size_t>(k);
      filters[m].weights.push_back(static_cast<float>(weight * 2 / (right - left)));
    }
  }
  return filters;
}

}  // namespace

struct LogMel::Tables {
  LogMelConfig config;
  std::vector<float> window;
  std::vector<Filter> filters;
  struct Free {
    void operator()(kiss_fftr_state* state) const { std::free(state); }
  };

  // The power spectrum's scratch; one per call, so that calls may run side by side (kissfft's state has a buffer of its
  // own).
  struct Spectrum {
    std::unique_ptr<kiss_fftr_state, Free> fft;
    std::vector<float> frame, power;
    std::vector<kiss_fft_cpx> bins;
  };
  Spectrum spectrum() const {
    const auto n = static_cast<std::size_t>(config.n_fft);
    Spectrum made{std::unique_ptr<kiss_fftr_state, Free>(kiss_fftr_alloc(config.n_fft, 0, nullptr, nullptr)),
                  std::vector<float>(n), std::vector<float>(n / 2 + 1), std::vector<kiss_fft_cpx>(n / 2 + 1)};
    check(made.fft != nullptr, "the FFT cannot be set up");
    return made;
  }

  // Mel powers of the frame in the middle of whose window sample `middle` lies, of `total` samples of which all behind
  // `samples` are zeros, reflected at both ends. `out` has a stride of `stride`.
  void mel(std::span<const float> samples, std::int64_t total, std::int64_t middle, Spectrum& work, float* out,
           std::int64_t stride) const {
    const std::int64_t n = config.n_fft, begin = middle - n / 2;
    const auto given = static_cast<std::int64_t>(samples.size());
    if (begin >= 0 && begin + n <= given) {
      for (std::int64_t i = 0; i < n; ++i) {
        work.frame[static_cast<std::size_t>(i)] =
            samples[static_cast<std::size_t>(begin + i)] * window[static_cast<std::size_t>(i)];
      }
    } else {
      for (std::int64_t i = 0; i < n; ++i) {
        std::int64_t at = std::abs(begin + i);
        if (at >= total) at = 2 * (total - 1) - at;
        work.frame[static_cast<std::size_t>(i)] =
            at < given ? samples[static_cast<std::size_t>(at)] * window[static_cast<std::size_t>(i)] : 0.0F;
      }
    }
    kiss_fftr(work.fft.get(), work.frame.data(), work.bins.data());
    for (std::size_t k = 0; k < work.power.size(); ++k) {
      work.power[k] = work.bins[k].r * work.bins[k].r + work.bins[k].i * work.bins[k].i;
    }
    for (const Filter& filter : filters) {
      float sum = 0;
      const float* power = work.power.data() + filter.first;
      for (std::size_t k = 0; k < filter.weights.size(); ++k) sum += filter.weights[k] * power[k];
      *out = std::log10(std::max(sum, kFloor));
      out += stride;
    }
  }

  // The first `frames` frames of the clip padded with zeros to `total` samples, more than n_fft / 2.
  Features features(std::span<const float> samples, std::int64_t total, std::int64_t frames) const {
    const auto given = static_cast<std::int64_t>(samples.size());
    std::vector<float> normalized;
    if (config.do_normalize) {
      normalized = normalize(samples);
      samples = normalized;
    }
    Features features;
    features.bins = config.feature_size;
    features.frames = frames;
    features.valid_frames = config.valid_frames(given);
    const float silence = std::log10(kFloor);
    features.values.assign(static_cast<std::size_t>(features.bins * frames), silence);
    // Frames from here on see nothing but zeros. Those that see sound, but lie behind the frames that are kept, count
    // for the maximum.
    const std::int64_t sounding =
        std::min((given + config.n_fft / 2 + config.hop_length - 1) / config.hop_length, total / config.hop_length);
    std::vector<float> behind(static_cast<std::size_t>(features.bins));
    float top = silence;
    Spectrum work = spectrum();
    for (std::int64_t t = 0; t < sounding; ++t) {
      const bool kept = t < frames;
      float* out = kept ? features.values.data() + t : behind.data();
      const std::int64_t stride = kept ? frames : 1;
      mel(samples, total, t * config.hop_length, work, out, stride);
      for (std::int64_t m = 0; m < features.bins; ++m) top = std::max(top, out[m * stride]);
    }
    const float floor = top - 8.0F;
    for (float& value : features.values) value = (std::max(value, floor) + 4.0F) / 4.0F;
    features.silence = (std::max(silence, floor) + 4.0F) / 4.0F;
    return features;
  }

  static std::vector<float> normalize(std::span<const float> samples) {
    double sum = 0, squares = 0;
    for (const float sample : samples) sum += sample;
    const double mean = sum / static_cast<double>(samples.size());
    for (const float sample : samples) squares += (sample - mean) * (sample - mean);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(samples.size()) + 1e-7);
    std::vector<float> out(samples.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>((samples[i] - mean) * scale);
    return out;
  }
};

void LogMelConfig::validate() const {
  const auto demand = [](bool holds, std::string what) {
    if (!holds) throw usage_error(std::move(what)).mend("take the model's own preprocessor_config.json");
  };
  demand(feature_size >= 1 && feature_size <= 1024,
         fmt::format("feature_size is {}, not from 1 to 1024", feature_size));
  demand(sampling_rate >= 1000 && sampling_rate <= 1'000'000,
         fmt::format("sampling_rate is {}, not from 1000 to 1000000", sampling_rate));
  demand(n_fft >= 2 && n_fft <= 1 << 16 && n_fft % 2 == 0,
         fmt::format("n_fft is {}, not an even number from 2 to 65536", n_fft));
  demand(hop_length >= 1 && hop_length <= n_fft,
         fmt::format("hop_length is {}, not from 1 to n_fft {}", hop_length, n_fft));
  demand(chunk_length >= 1 && chunk_length <= 3600,
         fmt::format("chunk_length is {}, not from 1 to 3600 s", chunk_length));
  demand(chunk_samples() % hop_length == 0 && chunk_samples() > n_fft,
         fmt::format("a chunk of {} samples is not whole hops of {} and longer than n_fft {}", chunk_samples(),
                     hop_length, n_fft));
}

LogMel::LogMel(const LogMelConfig& config) {
  config.validate();
  auto tables = std::make_unique<Tables>();
  tables->config = config;
  tables->filters = mel_filters(config);
  for (int i = 0; i < config.n_fft; ++i) {
    tables->window.push_back(static_cast<float>(0.5 - 0.5 * std::cos(2 * std::numbers::pi * i / config.n_fft)));
  }
  tables_ = std::move(tables);
}
LogMel::~LogMel() = default;
LogMel::LogMel(LogMel&&) noexcept = default;
LogMel& LogMel::operator=(LogMel&&) noexcept = default;

const LogMelConfig& LogMel::config() const {
  return tables_->config;
}

std::vector<float> LogMel::filters() const {
  const auto bins = static_cast<std::size_t>(config().n_fft) / 2 + 1;
  std::vector<float> all(tables_->filters.size() * bins);
  for (std::size_t m = 0; m < tables_->filters.size(); ++m) {
    const Filter& filter = tables_->filters[m];
    std::copy(filter.weights.begin(), filter.weights.end(),
              all.begin() + static_cast<std::ptrdiff_t>(m * bins + filter.first));
  }
  return all;
}

Features LogMel::padded(std::span<const float> samples) const {
  const LogMelConfig& c = config();
  if (samples.empty()) throw data_error("features of a clip without samples are asked for");
  if (static_cast<std::int64_t>(samples.size()) > c.chunk_samples()) {
    throw data_error(fmt::format("a clip of {:.2f} s is longer than the {} s that the model takes at once",
                                 static_cast<double>(samples.size()) / c.sampling_rate, c.chunk_length))
        .mend("cut it into utterances, or leave out what is longer (max_seconds)");
  }
  return tables_->features(samples, c.chunk_samples(), c.chunk_frames());
}

// Up to a chunk, the length of the padded clip; a longer clip gets as many zeros as a window reaches.
std::int64_t LogMel::total_samples(std::int64_t samples) const {
  const LogMelConfig& c = config();
  return samples <= c.chunk_samples() ? c.chunk_samples() : c.valid_frames(samples + c.n_fft) * c.hop_length;
}

Features LogMel::unpadded(std::span<const float> samples) const {
  if (samples.empty()) throw data_error("features of a clip without samples are asked for");
  const auto given = static_cast<std::int64_t>(samples.size());
  return tables_->features(samples, total_samples(given), config().valid_frames(given));
}

Features LogMel::sounding(std::span<const float> samples) const {
  if (samples.empty()) throw data_error("features of a clip without samples are asked for");
  const auto given = static_cast<std::int64_t>(samples.size());
  const std::int64_t total = total_samples(given);
  return tables_->features(samples, total,
                           std::min(config().valid_frames(given + config().n_fft / 2), total / config().hop_length));
}

std::vector<Features> LogMel::windows(std::span<const float> samples) const {
  if (samples.empty()) throw data_error("features of a clip without samples are asked for");
  const auto chunk = static_cast<std::size_t>(config().chunk_samples());
  std::vector<Features> all;
  for (std::size_t at = 0; at < samples.size(); at += chunk) {
    all.push_back(padded(samples.subspan(at, std::min(chunk, samples.size() - at))));
  }
  return all;
}

}  // namespace convoy
