#include "train/speech_fallback.h"

#include <fmt/format.h>
#include <zlib.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace convoy {
namespace {

void read_threshold(const Json& generation, const std::string& where, const char* key,
                    std::optional<double>& threshold) {
  const auto place = generation.find(key);
  if (place == generation.end()) return;
  if (place->is_null()) {
    threshold.reset();
  } else if (place->is_number()) {
    threshold = place->get<double>();
  } else {
    throw data_error(fmt::format("{} must be a number or null, not {}", key, place->dump())).at(where);
  }
}

bool repeats(const WindowScore& score, const FallbackOptions& options) {
  return options.compression_ratio_threshold && score.compression_ratio > *options.compression_ratio_threshold;
}

}  // namespace

FallbackOptions whisper_fallback() {
  FallbackOptions options;
  options.temperatures = {0, 0.2, 0.4, 0.6, 0.8, 1};
  options.compression_ratio_threshold = 2.4;
  options.logprob_threshold = -1;
  options.no_speech_threshold = 0.6;
  return options;
}

void read_fallback(const Json& generation, const std::string& where, FallbackOptions& options) {
  if (!generation.is_object()) return;
  if (const auto place = generation.find("temperature"); place != generation.end()) {
    std::vector<double> given;
    for (const Json& each : place->is_array() ? *place : Json::array({*place})) {
      if (!each.is_number()) break;
      given.push_back(each.get<double>());
    }
    if (place->is_array()) {
      if (given.empty() || given.size() != place->size())
        throw data_error(fmt::format("temperature must be numbers, not {}", place->dump())).at(where);
      options.temperatures = given;
    } else if (!given.empty() && generation.value("do_sample", Json(false)) == Json(true)) {
      options.temperatures = given;  // elsewhere a number is what every such file has, and nothing is drawn
    }
  }
  read_threshold(generation, where, "compression_ratio_threshold", options.compression_ratio_threshold);
  read_threshold(generation, where, "logprob_threshold", options.logprob_threshold);
  read_threshold(generation, where, "no_speech_threshold", options.no_speech_threshold);
}

void check_fallback(const FallbackOptions& options) {
  if (options.temperatures.empty()) throw usage_error("no temperature").mend("give at least one: 0");
  for (const double each : options.temperatures) {
    if (std::isfinite(each) && each >= 0) continue;
    throw usage_error(fmt::format("a temperature of {}", each)).mend("give temperatures of 0 and above");
  }
  if (options.best_of < 1) throw usage_error("best_of must be 1 or more");
}

double compression_ratio(const std::string& text) {
  uLongf size = compressBound(static_cast<uLong>(text.size()));
  std::vector<Bytef> packed(size);
  const int status =
      compress(packed.data(), &size, reinterpret_cast<const Bytef*>(text.data()), static_cast<uLong>(text.size()));
  check(status == Z_OK, "zlib cannot compress a text");
  return static_cast<double>(text.size()) / static_cast<double>(size);
}

Verdict judge(const WindowScore& score, const FallbackOptions& options) {
  const bool unsure = options.logprob_threshold && score.avg_logprob < *options.logprob_threshold;
  const bool quiet =
      options.no_speech_threshold && score.no_speech_prob && *score.no_speech_prob > *options.no_speech_threshold;
  // What the model is sure of is speech, whatever else it says.
  if (quiet && (unsure || !options.logprob_threshold)) return Verdict::kSilence;
  return unsure || repeats(score, options) ? Verdict::kAgain : Verdict::kTaken;
}

bool better(const WindowScore& one, const WindowScore& other, const FallbackOptions& options) {
  const bool again = repeats(one, options);
  if (again != repeats(other, options)) return !again;
  return one.avg_logprob > other.avg_logprob;
}

}  // namespace convoy
