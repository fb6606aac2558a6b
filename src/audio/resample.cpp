#include "audio/resample.h"

#include <fmt/format.h>
#include <soxr.h>

#include <cmath>

#include "base/error.h"

namespace convoy {

struct Resampler::State {
  soxr_t soxr = nullptr;  // none where the rates are equal
  double ratio = 1;       // samples out per sample in

  void process(const float* in, std::size_t count, std::vector<float>& out) const {
    constexpr std::size_t kPiece = 1 << 14;
    std::size_t taken = 0;
    while (true) {
      const std::size_t before = out.size();
      out.resize(before + kPiece);
      std::size_t used = 0, made = 0;
      const soxr_error_t failure = soxr_process(soxr, in == nullptr ? nullptr : in + taken, count - taken, &used,
                                                out.data() + before, kPiece, &made);
      out.resize(before + made);
      if (failure != nullptr) throw internal_error(fmt::format("soxr cannot resample: {}", failure));
      taken += used;
      if (made < kPiece && taken == count) return;
    }
  }
};

Resampler::Resampler(double from, double to) : state_(std::make_unique<State>()) {
  constexpr double kMostApart = 4096;
  if (!(from > 0 && to > 0) || !std::isfinite(from) || !std::isfinite(to) || from / to > kMostApart ||
      to / from > kMostApart) {
    throw usage_error(fmt::format("cannot resample from {} Hz to {} Hz", from, to)).mend("give real sampling rates");
  }
  state_->ratio = to / from;
  if (from == to) return;
  const soxr_io_spec_t types = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
  const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
  const soxr_runtime_spec_t runtime = soxr_runtime_spec(1);  // the callers are the threads
  soxr_error_t failure = nullptr;
  state_->soxr = soxr_create(from, to, 1, &failure, &types, &quality, &runtime);
  if (failure != nullptr || state_->soxr == nullptr) {
    throw internal_error(fmt::format("soxr does not start for {} Hz to {} Hz: {}", from, to,
                                     failure != nullptr ? failure : "out of memory"));
  }
}

Resampler::~Resampler() {
  if (state_->soxr != nullptr) soxr_delete(state_->soxr);
}

void Resampler::add(std::span<const float> samples, std::vector<float>& out) {
  if (state_->soxr == nullptr) {
    out.insert(out.end(), samples.begin(), samples.end());
  } else if (!samples.empty()) {
    state_->process(samples.data(), samples.size(), out);
  }
}

void Resampler::finish(std::vector<float>& out) {
  if (state_->soxr != nullptr) state_->process(nullptr, 0, out);
}

std::vector<float> resample(std::span<const float> samples, double from, double to) {
  Resampler resampler(from, to);
  std::vector<float> out;
  out.reserve(static_cast<std::size_t>(static_cast<double>(samples.size()) * to / from) + (std::size_t{1} << 14) + 1);
  resampler.add(samples, out);
  resampler.finish(out);
  return out;
}

}  // namespace convoy
