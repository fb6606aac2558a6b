// Parsers of single kinds of manifest. They read bytes from wherever and touch no file but to see whether a recording
// is there. Internal to audio/.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "audio/manifest.h"
#include "base/error.h"
#include "data/input.h"

namespace convoy {

// Where parsed utterances go, and what becomes of malformed ones.
class UtteranceSink {
 public:
  UtteranceSink(const ManifestOptions& options, DataReport* report) : options_(options), report_(report) {}

  // One record: `fill` sets the utterance up, and may throw a data error about it.
  void add(const std::string& where, const std::function<void(Utterance&)>& fill);
  const ManifestOptions& options() const { return options_; }
  std::vector<Utterance> take() { return std::move(utterances_); }

 private:
  const ManifestOptions& options_;
  DataReport* report_;
  std::vector<Utterance> utterances_;
};

// Throws a data error with the byte where `text` is not UTF-8.
void require_valid_text(std::string_view text);
// `file` as it is where that is absolute, else from `folder` on.
std::string in_folder(const std::filesystem::path& folder, std::string_view file);
// A number of seconds, finite and not negative; `what` goes into the data error otherwise.
double parse_seconds(std::string_view text, std::string_view what);
// Cuts at runs of spaces and tabs: the first field, and the rest without space around it.
std::pair<std::string_view, std::string_view> first_field(std::string_view line);

// The fields of a JSON record. `audio` may be missing where the recording lies beside the record (tar).
// `padded`: LineReader::kPadding more bytes may be read behind the text.
void parse_json_utterance(std::string_view json, bool padded, const std::filesystem::path& folder, bool need_audio,
                          bool need_text, Utterance& utterance);

void parse_json_manifest(LineReader& lines, const std::filesystem::path& folder, UtteranceSink& sink);
// Durations in milliseconds by clip; from clip_durations.tsv.
std::unordered_map<std::string, double> parse_clip_durations(LineReader& lines);
void parse_common_voice(LineReader& lines, const std::filesystem::path& clips,
                        const std::unordered_map<std::string, double>& durations, UtteranceSink& sink);
// A *.trans.txt file; `recording` gives the file of an utterance.
void parse_transcripts(LineReader& lines, const std::function<std::string(const std::string& id)>& recording,
                       UtteranceSink& sink);

// A file with embedded recordings, which are unpacked into ManifestOptions::unpack, or with the names of files.
void parse_parquet_manifest(const std::filesystem::path& file, UtteranceSink& sink);

struct KaldiStreams {
  std::unique_ptr<LineReader> recordings, text, segments, durations;  // all but the first may be null
};
void parse_kaldi(KaldiStreams streams, const std::filesystem::path& folder, UtteranceSink& sink);

struct TarMember {
  std::string name;
  std::uint64_t offset = 0, size = 0;
};
// Regular files of a tar archive (ustar, GNU and pax). Throws a data error for a damaged or truncated archive.
std::vector<TarMember> list_tar(std::string_view bytes, const std::string& name);
void parse_tar(std::string_view bytes, const std::string& name, UtteranceSink& sink);

}  // namespace convoy
