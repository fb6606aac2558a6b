// Manifests: lists of recordings with their transcripts, in the forms in which speech data are kept.
//
//   JSONL         a line each: {"audio": FILE, "text": TRANSCRIPT, "duration": SECONDS, "language": …, "id": …}; the
//   file
//                 also as "audio_filepath" or {"path": …}, the transcript also as "sentence"; "offset" begins a part
//   Common Voice  a TSV file with the columns path and sentence, recordings in the folder clips beside it; durations
//   from
//                 clip_durations.tsv where that is there
//   LibriSpeech   a folder with *.trans.txt files at any depth ("ID TRANSCRIPT"), recordings beside each
//   Kaldi         a folder with wav.scp and text, and maybe segments and utt2dur
//   tar           WebDataset shards: members KEY.wav (flac, mp3, ogg, opus, …) with KEY.txt or KEY.json
//   Parquet       Hugging Face's files (in a build with Arrow): columns audio {bytes, path} and text (or sentence, …)
//
// Files are looked for from the manifest's folder. JSONL and TSV may be compressed (.gz, .zst).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "audio/utterance.h"
#include "data/report.h"

namespace convoy {

enum class ManifestFormat : std::uint8_t { kAuto, kJsonLines, kCommonVoice, kLibriSpeech, kKaldi, kTar, kParquet };
std::string_view name_of(ManifestFormat format);
// "auto", "jsonl", "common_voice", "librispeech", "kaldi", "tar", "parquet"; else a usage error with the nearest.
ManifestFormat parse_manifest_format(std::string_view name);

struct ManifestOptions {
  ManifestFormat format = ManifestFormat::kAuto;
  std::filesystem::path clips = {};   // Common Voice: the folder of the recordings; empty: "clips" beside the TSV file
  std::filesystem::path unpack = {};  // Parquet: where recordings are unpacked; empty: Convoy's cache folder
  bool need_text = true;              // false: recordings without a transcript are fine (to transcribe them)
  bool check_files = true;            // a recording that is not there is a malformed record
  bool skip_bad_samples = false;      // count and list malformed records instead of stopping at the first
};

// What a path is: by a folder's files, a file's name and its first bytes. Throws a usage error where that is not plain.
ManifestFormat detect_manifest_format(const std::filesystem::path& path);

// The utterances of one manifest, in its order (folders: sorted by name). Throws data errors with file and line; under
// skip_bad_samples those go into `report` instead, which may be null.
std::vector<Utterance> read_manifest(const std::filesystem::path& path, const ManifestOptions& options = {},
                                     DataReport* report = nullptr);
// Of several paths or shell patterns, in that order. A pattern without files is a usage error.
std::vector<Utterance> read_manifests(const std::vector<std::string>& patterns, const ManifestOptions& options = {},
                                      DataReport* report = nullptr);

// Fills in durations that are not known from the recordings' headers, on the compute pool; recordings whose header does
// not say are decoded. Recordings that cannot be read are data errors, or with `skip` left out and counted in `report`.
void measure_durations(std::vector<Utterance>& utterances, bool skip = false, DataReport* report = nullptr);

// Leaves out utterances shorter than `least` or longer than `most` seconds (0: no limit), which are counted as "too
// short" and "too long". Durations must be known.
void limit_durations(std::vector<Utterance>& utterances, double least, double most, DataReport* report = nullptr);

}  // namespace convoy
