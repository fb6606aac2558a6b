// Kaldi's data folders: wav.scp, text, segments, utt2dur (kaldi-asr.org/doc/data_prep.html).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "audio/manifest_parsers.h"

namespace convoy {
namespace {

std::string place(const LineReader& lines) {
  return fmt::format("{}:{}", lines.name(), lines.number());
}

// Lines "KEY VALUE", in their order and by key. A damaged line is an error of the file: others depend on it.
struct Table {
  struct Entry {
    std::string key, value, where;
  };
  std::vector<Entry> entries;
  std::unordered_map<std::string, std::size_t> index;

  explicit Table(LineReader* lines) {
    std::string_view line;
    while (lines != nullptr && lines->next(line)) {
      const auto [key, value] = first_field(line);
      if (key.empty()) continue;
      try {
        require_valid_text(line);
      } catch (Error& failure) {
        throw storage_error(failure.message()).at(place(*lines)).mend(failure.remedy());
      }
      if (!index.emplace(key, entries.size()).second) {
        throw storage_error(fmt::format("'{}' stands here a second time", key))
            .at(place(*lines))
            .mend("run utils/fix_data_dir.sh on the folder");
      }
      entries.push_back({std::string(key), std::string(value), place(*lines)});
    }
  }
  const Entry* find(const std::string& key) const {
    const auto at = index.find(key);
    return at == index.end() ? nullptr : &entries[at->second];
  }
};

// The recording of a line of wav.scp: a file, or FILE:OFFSET for one within an archive.
void set_recording(const Table::Entry& entry, const std::filesystem::path& folder, Utterance& utterance) {
  std::string file = entry.value;
  if (file.empty()) throw data_error(fmt::format("'{}' names no file", entry.key)).at(entry.where);
  if (file.ends_with('|')) {
    throw data_error(fmt::format("'{}' is the output of a command, and commands are not run", entry.key))
        .at(entry.where)
        .mend("write the recordings to files first, such as with wav-copy or ffmpeg");
  }
  const auto found = [&](const std::string& name) {
    // Kaldi counts from the folder it is started in; data that is passed on, from the manifest's own.
    const std::string beside = in_folder(folder, name);
    return std::filesystem::exists(beside) || !std::filesystem::exists(name) ? beside : name;
  };
  utterance.audio = found(file);
  const std::size_t colon = file.rfind(':');
  if (colon == std::string::npos || std::filesystem::exists(utterance.audio)) return;
  std::uint64_t offset = 0;
  const char* end = file.data() + file.size();
  const auto [at, failure] = std::from_chars(file.data() + colon + 1, end, offset);
  if (failure != std::errc() || at != end || colon == 0) return;
  file.resize(colon);
  utterance.audio = found(file);
  utterance.offset = offset;
}

}  // namespace

void parse_kaldi(KaldiStreams streams, const std::filesystem::path& folder, UtteranceSink& sink) {
  const Table recordings(streams.recordings.get()), text(streams.text.get()), durations(streams.durations.get());
  const bool cut = streams.segments != nullptr;
  const Table segments(streams.segments.get());
  const Table& utterances = cut ? segments : recordings;
  for (const Table::Entry& entry : utterances.entries) {
    sink.add(entry.where, [&](Utterance& utterance) {
      utterance.id = entry.key;
      if (cut) {
        const auto [recording, times] = first_field(entry.value);
        const auto [begin, end] = first_field(times);
        const Table::Entry* whole = recordings.find(std::string(recording));
        if (whole == nullptr) throw data_error(fmt::format("wav.scp has no recording '{}'", recording));
        set_recording(*whole, folder, utterance);
        utterance.start = parse_seconds(begin, "the start");
        if (end != "-1") {  // -1: to the recording's end
          utterance.seconds = parse_seconds(end, "the end") - utterance.start;
          if (!(utterance.seconds > 0))
            throw data_error(fmt::format("the segment ends at {} and begins at {}", end, begin));
          utterance.duration = utterance.seconds;
        }
      } else {
        set_recording(entry, folder, utterance);
      }
      if (const Table::Entry* said = text.find(entry.key)) {
        utterance.text = said->value;
      } else if (sink.options().need_text) {
        throw data_error(fmt::format("the file text has no transcript of '{}'", entry.key))
            .mend("run utils/fix_data_dir.sh on the folder");
      }
      if (const Table::Entry* lasting = durations.find(entry.key); lasting != nullptr && utterance.duration < 0)
        utterance.duration = parse_seconds(lasting->value, "the duration");
    });
  }
  for (const Table::Entry& entry : text.entries) {
    if (utterances.find(entry.key) != nullptr) continue;
    sink.add(entry.where, [&](Utterance&) {
      throw data_error(fmt::format("{} has no recording of '{}'", cut ? "segments" : "wav.scp", entry.key))
          .mend("run utils/fix_data_dir.sh on the folder");
    });
  }
}

}  // namespace convoy
