// The manifest parsers: any bytes give utterances or errors, never a crash; what they give is valid UTF-8, and
// recordings of a tar shard lie within it. The first byte picks the format; Kaldi's files are parted by a null byte.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "audio/manifest_parsers.h"

namespace {

using convoy::LineReader;

std::unique_ptr<LineReader> lines_of(std::string_view text) {
  return std::make_unique<LineReader>(convoy::memory_stream(text), "fuzz");
}

void parse(std::uint8_t format, std::string_view content, convoy::UtteranceSink& sink) {
  switch (format % 5) {
    case 0:
      return convoy::parse_json_manifest(*lines_of(content), "folder", sink);
    case 1: {
      const std::size_t cut = content.find('\0');
      const auto durations = cut == std::string_view::npos
                                 ? std::unordered_map<std::string, double>{}
                                 : convoy::parse_clip_durations(*lines_of(content.substr(cut + 1)));
      return convoy::parse_common_voice(*lines_of(content.substr(0, cut)), "clips", durations, sink);
    }
    case 2:
      return convoy::parse_transcripts(
          *lines_of(content), [](const std::string& id) { return id + ".flac"; }, sink);
    case 3: {
      convoy::KaldiStreams streams;
      for (std::unique_ptr<LineReader>* stream :
           {&streams.recordings, &streams.text, &streams.durations, &streams.segments}) {
        const std::size_t cut = content.find('\0');
        *stream = lines_of(content.substr(0, cut));
        if (cut == std::string_view::npos) break;
        content.remove_prefix(cut + 1);
      }
      return convoy::parse_kaldi(std::move(streams), "folder", sink);
    }
    default:
      return convoy::parse_tar(content, "fuzz.tar", sink);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  convoy::ManifestOptions options;
  options.check_files = false;
  options.need_text = data[0] / 5 % 2 == 0;
  options.skip_bad_samples = data[0] / 10 % 2 == 0;
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  convoy::DataReport report;
  convoy::UtteranceSink sink(options, &report);
  try {
    parse(data[0], content, sink);
  } catch (const convoy::Error& failure) {
    if (failure.status() == convoy::Status::kInternal) std::abort();
  }
  for (const convoy::Utterance& utterance : sink.take()) {
    if (convoy::find_invalid_utf8(utterance.text + utterance.id + utterance.language) != std::string_view::npos)
      std::abort();
    if (utterance.where.empty() || utterance.audio.empty()) std::abort();
    if (data[0] % 5 == 4 && (utterance.offset > content.size() || utterance.size > content.size() - utterance.offset))
      std::abort();
    if (utterance.start < 0 || utterance.seconds < 0) std::abort();
  }
  return 0;
}
