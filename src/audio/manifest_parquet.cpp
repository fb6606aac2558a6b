// Parquet files of speech data, as Hugging Face's data sets have them: a column "audio" of {bytes, path}, transcripts
// and more in others. The recordings are unpacked once into one file beside each other, where they are then read in
// place by every thread and rank.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "audio/manifest_parsers.h"
#include "base/cache_folder.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/parquet.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kAudio = {"audio", "audio_filepath"};
const std::vector<std::string> kText = {"text", "sentence", "transcription", "transcript"};
const std::vector<std::string> kLanguage = {"language", "locale"};

// The first of some columns that the file has; "" where it has none.
std::string first_of(const std::vector<std::string>& names, const std::vector<std::string>& columns) {
  const auto found = std::find_first_of(names.begin(), names.end(), columns.begin(), columns.end());
  return found == names.end() ? "" : *found;
}

// The bytes of a row's recording; null where it names a file.
const Json* recording_in(const Json& audio) {
  if (audio.is_binary()) return &audio;
  if (!audio.is_object() || !audio.contains("bytes") || !audio["bytes"].is_binary()) return nullptr;
  return &audio["bytes"];
}

fs::path recordings_file(const fs::path& file, const fs::path& folder) {
  fs::path into = folder.empty() ? cache_folder() : folder;
  if (into.empty()) {
    throw usage_error("there is no folder to unpack the recordings of a Parquet file in")
        .at(file.string())
        .mend("set CONVOY_CACHE_DIR");
  }
  const MappedFile content(file);
  return into / "recordings" / (hex64(hash64(content.bytes())) + ".bin");
}

// Writes the recordings one after the other. The file appears when it is complete: several processes may do so at once.
void unpack(const fs::path& file, const std::string& column, const fs::path& to) {
  log_info("unpacking the recordings of {} into {}", file.string(), to.string());
  fs::create_directories(to.parent_path());
  const fs::path part = to.string() + fmt::format(".tmp-{}", ::getpid());
  try {
    FileWriter writer(part);
    const auto rows = open_parquet(file);
    rows->select({column});
    for (Json row; rows->next(row);) {
      if (const Json* bytes = recording_in(row[column])) {
        const Json::binary_t& recording = bytes->get_binary();
        writer.write(std::as_bytes(std::span(recording.data(), recording.size())));
      }
    }
    writer.close();
    fs::rename(part, to);
  } catch (...) {
    std::error_code ignored;
    fs::remove(part, ignored);
    throw;
  }
}

}  // namespace

void parse_parquet_manifest(const fs::path& file, UtteranceSink& sink) {
  const auto rows = open_parquet(file);
  const std::string audio = first_of(kAudio, rows->columns());
  const std::string text = first_of(kText, rows->columns());
  const std::string language = first_of(kLanguage, rows->columns());
  const auto need = [&](const std::string& found, const std::vector<std::string>& names) {
    if (!found.empty()) return;
    throw usage_error(fmt::format("no column '{}'", names.front()))
        .at(file.string())
        .mend(
            "speech data have a column audio (bytes and path) and one of their transcripts: text, sentence, "
            "transcription or transcript");
  };
  need(audio, kAudio);
  if (sink.options().need_text) need(text, kText);
  rows->select({audio, text, language, "id", "duration"});
  fs::path unpacked;
  std::uint64_t offset = 0;
  std::int64_t number = 0;
  for (Json row; rows->next(row);) {
    const Json* bytes = recording_in(row[audio]);
    const std::uint64_t size = bytes == nullptr ? 0 : bytes->get_binary().size();
    if (bytes != nullptr && unpacked.empty()) {
      unpacked = recordings_file(file, sink.options().unpack);
      if (!fs::exists(unpacked)) unpack(file, audio, unpacked);
    }
    Json record = Json::object();
    if (!text.empty()) record["text"] = row[text];
    if (!language.empty()) record["language"] = row[language];
    for (const char* name : {"id", "duration"}) {
      if (row.contains(name)) record[name] = row[name];
    }
    if (bytes == nullptr) record["audio"] = row[audio];
    sink.add(fmt::format("{}, row {}", file.string(), ++number), [&](Utterance& utterance) {
      std::string json;
      try {
        json = record.dump();
      } catch (const Json::exception&) {
        throw data_error("a text is not valid UTF-8");
      }
      parse_json_utterance(json, false, file.parent_path(), bytes == nullptr, sink.options().need_text, utterance);
      if (bytes == nullptr) return;
      if (size == 0) throw data_error("the recording is empty");
      utterance.audio = unpacked.string();
      utterance.offset = offset;
      utterance.size = size;
      if (utterance.id.empty() && row[audio].is_object() && row[audio].value("path", Json()).is_string())
        utterance.id = row[audio]["path"].get<std::string>();
    });
    offset += size;
  }
}

}  // namespace convoy
