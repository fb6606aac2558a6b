#include "audio/manifest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "audio/manifest_parsers.h"
#include "base/parallel.h"
#include "base/suggest.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::pair<std::string_view, ManifestFormat>, 7> kFormats = {{
    {"auto", ManifestFormat::kAuto},
    {"jsonl", ManifestFormat::kJsonLines},
    {"common_voice", ManifestFormat::kCommonVoice},
    {"librispeech", ManifestFormat::kLibriSpeech},
    {"kaldi", ManifestFormat::kKaldi},
    {"tar", ManifestFormat::kTar},
    {"parquet", ManifestFormat::kParquet},
}};

bool is_transcript_file(const fs::path& path) {
  return path.string().ends_with(".trans.txt");
}

std::vector<fs::path> transcript_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code failure;
  for (fs::recursive_directory_iterator at(folder, failure), end; at != end && !failure; at.increment(failure)) {
    if (is_transcript_file(at->path())) files.push_back(at->path());
  }
  if (failure) throw storage_error(fmt::format("the folder cannot be read: {}", failure.message())).at(folder.string());
  std::sort(files.begin(), files.end());
  return files;
}

std::unique_ptr<LineReader> lines_of(const fs::path& file) {
  return std::make_unique<LineReader>(open_stream(file), file.string());
}
std::unique_ptr<LineReader> lines_if_there(const fs::path& file) {
  if (!fs::exists(file)) return nullptr;
  return lines_of(file);
}

void read_libri_speech(const fs::path& path, UtteranceSink& sink) {
  const std::vector<fs::path> files = fs::is_directory(path) ? transcript_files(path) : std::vector{path};
  if (files.empty()) {
    throw usage_error("the folder holds no *.trans.txt files")
        .at(path.string())
        .mend("name a folder in LibriSpeech's layout");
  }
  for (const fs::path& file : files) {
    const fs::path folder = file.parent_path();
    parse_transcripts(
        *lines_of(file),
        [&](const std::string& id) {
          for (const char* extension : {".flac", ".wav", ".mp3", ".ogg", ".opus"}) {
            if (const fs::path recording = folder / (id + extension); fs::exists(recording)) return recording.string();
          }
          return (folder / (id + ".flac")).string();  // which is then said to be missing
        },
        sink);
  }
}

void read_kaldi(const fs::path& path, UtteranceSink& sink) {
  const fs::path folder = fs::is_directory(path) ? path : path.parent_path();
  KaldiStreams streams;
  streams.recordings = lines_of(folder / "wav.scp");
  if (sink.options().need_text || fs::exists(folder / "text")) streams.text = lines_of(folder / "text");
  streams.segments = lines_if_there(folder / "segments");
  streams.durations = lines_if_there(folder / "utt2dur");
  parse_kaldi(std::move(streams), folder, sink);
}

// Counts an utterance that was taken at first.
void leave_out(DataReport* report, const std::string& kind, const std::string& where, const std::string& why) {
  if (report == nullptr) return;
  --report->samples;
  report->skip(kind, where, why);
}

}  // namespace

std::string_view name_of(ManifestFormat format) {
  return kFormats[static_cast<std::size_t>(format)].first;
}

ManifestFormat parse_manifest_format(std::string_view name) {
  std::vector<std::string> known;
  for (const auto& [text, format] : kFormats) {
    if (text == name) return format;
    known.emplace_back(text);
  }
  throw usage_error(fmt::format("unknown manifest format '{}'{}", name, did_you_mean(name, known)))
      .mend(fmt::format("use one of {}", fmt::join(known, ", ")));
}

ManifestFormat detect_manifest_format(const fs::path& path) {
  if (fs::is_directory(path)) {
    if (fs::exists(path / "wav.scp")) return ManifestFormat::kKaldi;
    if (!transcript_files(path).empty()) return ManifestFormat::kLibriSpeech;
    throw usage_error("the folder is neither Kaldi's (wav.scp) nor LibriSpeech's (*.trans.txt)")
        .at(path.string())
        .mend("name a manifest file: a .jsonl, a Common Voice .tsv or a .tar");
  }
  if (!fs::exists(path)) throw storage_error("there is no such manifest").at(path.string()).mend("check the path");
  if (is_transcript_file(path)) return ManifestFormat::kLibriSpeech;
  if (path.filename() == "wav.scp") return ManifestFormat::kKaldi;
  const std::string extension = without_compression(path).extension().string();
  if (extension == ".jsonl" || extension == ".json" || extension == ".ndjson") return ManifestFormat::kJsonLines;
  if (extension == ".tsv") return ManifestFormat::kCommonVoice;
  if (extension == ".parquet") return ManifestFormat::kParquet;
  if (extension == ".tar" || extension == ".tgz") return ManifestFormat::kTar;
  std::string_view line;
  if (LineReader lines(open_stream(path), path.string()); lines.next(line) && line.starts_with('{'))
    return ManifestFormat::kJsonLines;
  throw usage_error("the kind of the manifest is plain neither from its name nor from its content")
      .at(path.string())
      .mend("name it: jsonl, common_voice, librispeech, kaldi, tar or parquet");
}

std::vector<Utterance> read_manifest(const fs::path& path, const ManifestOptions& options, DataReport* report) {
  UtteranceSink sink(options, report);
  if (report != nullptr) ++report->files;
  const ManifestFormat format = options.format == ManifestFormat::kAuto ? detect_manifest_format(path) : options.format;
  switch (format) {
    case ManifestFormat::kJsonLines:
      parse_json_manifest(*lines_of(path), path.parent_path(), sink);
      break;
    case ManifestFormat::kCommonVoice: {
      const auto durations = lines_if_there(path.parent_path() / "clip_durations.tsv");
      parse_common_voice(
          *lines_of(path), options.clips.empty() ? path.parent_path() / "clips" : options.clips,
          durations == nullptr ? std::unordered_map<std::string, double>{} : parse_clip_durations(*durations), sink);
      break;
    }
    case ManifestFormat::kLibriSpeech:
      read_libri_speech(path, sink);
      break;
    case ManifestFormat::kKaldi:
      read_kaldi(path, sink);
      break;
    case ManifestFormat::kTar: {
      const MappedFile file(path);
      parse_tar(file.text(), path.string(), sink);
      break;
    }
    case ManifestFormat::kParquet:
      parse_parquet_manifest(path, sink);
      break;
    case ManifestFormat::kAuto:
      throw internal_error("a manifest of no format");
  }
  return sink.take();
}

std::vector<Utterance> read_manifests(const std::vector<std::string>& patterns, const ManifestOptions& options,
                                      DataReport* report) {
  std::vector<Utterance> all;
  for (const std::string& pattern : patterns) {
    const std::vector<fs::path> paths = expand_glob(pattern);
    if (paths.empty())
      throw usage_error(fmt::format("no file matches '{}'", pattern)).mend("check the path and the current folder");
    for (const fs::path& path : paths) {
      std::vector<Utterance> some = read_manifest(path, options, report);
      all.insert(all.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
    }
  }
  return all;
}

void measure_durations(std::vector<Utterance>& utterances, bool skip, DataReport* report) {
  const UtteranceReader reader;
  std::vector<std::optional<Error>> failures(utterances.size());
  parallel_for(static_cast<std::int64_t>(utterances.size()), [&](std::int64_t i) {
    Utterance& utterance = utterances[static_cast<std::size_t>(i)];
    if (utterance.duration >= 0) return;
    try {
      utterance.duration = reader.measure(utterance);
      if (utterance.duration < 0) utterance.duration = reader.decode(utterance).seconds();
    } catch (const Error& failure) {
      if (!skip || failure.status() == Status::kInternal) throw;
      failures[static_cast<std::size_t>(i)] = failure;
    }
  });
  std::size_t kept = 0;
  for (std::size_t i = 0; i < utterances.size(); ++i) {
    if (const std::optional<Error>& failure = failures[i]; failure.has_value()) {
      leave_out(report, "unreadable", failure->where(), failure->message());
      continue;
    }
    if (kept != i) utterances[kept] = std::move(utterances[i]);
    ++kept;
  }
  utterances.resize(kept);
}

void limit_durations(std::vector<Utterance>& utterances, double least, double most, DataReport* report) {
  std::erase_if(utterances, [&](const Utterance& utterance) {
    check(utterance.duration >= 0, "durations are limited before they are known");
    const bool longer = most > 0 && utterance.duration > most, shorter = utterance.duration < least;
    if (longer || shorter) {
      leave_out(report, longer ? "too long" : "too short", utterance.where,
                fmt::format("{:.2f} s", utterance.duration));
    }
    return longer || shorter;
  });
}

}  // namespace convoy
