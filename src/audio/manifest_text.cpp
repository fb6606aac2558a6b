// Manifests of text lines: JSONL, Common Voice, transcripts beside recordings.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "audio/manifest_parsers.h"
#include "base/suggest.h"

namespace convoy {
namespace {

namespace dom = simdjson::dom;

// The first of some fields that is there and not null.
bool find_field(dom::object record, std::initializer_list<const char*> names, dom::element& value) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) {
    return record.at_key(name).get(value) == simdjson::SUCCESS && !value.is_null();
  });
}

std::string string_field(dom::element value, const char* name) {
  std::string_view text;
  if (value.get_string().get(text) != simdjson::SUCCESS)
    throw data_error(fmt::format("field '{}' is not a string", name));
  return std::string(text);
}

double seconds_field(dom::element value, const char* name) {
  double seconds = 0;
  if (value.get_double().get(seconds) != simdjson::SUCCESS || !std::isfinite(seconds) || seconds < 0)
    throw data_error(fmt::format("field '{}' is not a number of seconds", name));
  return seconds;
}

std::string audio_field(dom::element value) {
  dom::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) return string_field(value, "audio");
  dom::element path;
  if (!find_field(object, {"path"}, path)) throw data_error("field 'audio' is an object without a 'path'");
  return string_field(path, "audio.path");
}

void split_tabs(std::string_view line, std::vector<std::string_view>& fields) {
  fields.clear();
  while (true) {
    const std::size_t tab = line.find('\t');
    fields.push_back(line.substr(0, tab));
    if (tab == std::string_view::npos) return;
    line.remove_prefix(tab + 1);
  }
}

std::string place(const LineReader& lines) {
  return fmt::format("{}:{}", lines.name(), lines.number());
}

// The columns of a TSV file's first row. A missing one is missing in all rows, so never a single record's fault.
class Columns {
 public:
  explicit Columns(LineReader& lines) {
    std::string_view line;
    if (!lines.next(line)) throw storage_error("the file is empty").at(lines.name());
    std::vector<std::string_view> fields;
    split_tabs(line, fields);
    names_.assign(fields.begin(), fields.end());
    where_ = lines.name();
  }
  std::size_t need(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (const auto at = std::find(names_.begin(), names_.end(), name); at != names_.end())
        return static_cast<std::size_t>(at - names_.begin());
    }
    throw storage_error(fmt::format("no column '{}'{}", *names.begin(), did_you_mean(*names.begin(), names_)))
        .at(where_)
        .mend("the first row should name the columns, parted by tabs");
  }
  std::size_t find(const char* name) const {
    return static_cast<std::size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
  }
  std::size_t size() const { return names_.size(); }

 private:
  std::vector<std::string> names_;
  std::string where_;
};

}  // namespace

void UtteranceSink::add(const std::string& where, const std::function<void(Utterance&)>& fill) {
  if (report_ != nullptr) ++report_->documents;
  Utterance utterance;
  utterance.where = where;
  try {
    fill(utterance);
    if (options_.check_files && !std::filesystem::is_regular_file(utterance.audio)) {
      throw data_error(fmt::format("there is no recording {}", utterance.audio))
          .mend("check the path, and from which folder it counts");
    }
  } catch (Error& failure) {
    if (failure.status() != Status::kData) throw failure.at(where);
    if (!options_.skip_bad_samples) {
      failure.at(where);
      throw failure.mend(failure.remedy().empty()
                             ? "mend the record, or set skip_bad_samples to leave out such records"
                             : failure.remedy() + "; or set skip_bad_samples to leave out such records");
    }
    if (report_ != nullptr) report_->skip("malformed", where, failure.message());
    return;
  } catch (const std::filesystem::filesystem_error& failure) {
    throw storage_error(fmt::format("the recording cannot be looked up: {}", failure.what())).at(where);
  }
  if (report_ != nullptr) ++report_->samples;
  utterances_.push_back(std::move(utterance));
}

void require_valid_text(std::string_view text) {
  if (const std::size_t bad = find_invalid_utf8(text); bad != std::string_view::npos)
    throw data_error(fmt::format("not valid UTF-8 at byte {}", bad + 1)).mend("convert the manifest to UTF-8");
}

std::string in_folder(const std::filesystem::path& folder, std::string_view file) {
  if (file.empty()) throw data_error("the recording has no name");
  if (file.find('\0') != std::string_view::npos) throw data_error("the recording's name holds a null character");
  return (folder / std::filesystem::path(file)).string();
}

double parse_seconds(std::string_view text, std::string_view what) {
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 0)
    throw data_error(fmt::format("{} '{}' is not a number of seconds", what, text));
  return value;
}

std::pair<std::string_view, std::string_view> first_field(std::string_view line) {
  constexpr std::string_view kSpace = " \t\r";
  const std::size_t begin = line.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  line.remove_prefix(begin);
  line = line.substr(0, line.find_last_not_of(kSpace) + 1);
  const std::size_t end = line.find_first_of(kSpace);
  if (end == std::string_view::npos) return {line, {}};
  const std::string_view rest = line.substr(end);
  return {line.substr(0, end), rest.substr(rest.find_first_not_of(kSpace))};
}

void parse_json_utterance(std::string_view json, bool padded, const std::filesystem::path& folder, bool need_audio,
                          bool need_text, Utterance& utterance) {
  require_valid_text(json);
  thread_local dom::parser parser;
  dom::element element;
  if (const simdjson::error_code code = parser.parse(json.data(), json.size(), !padded).get(element);
      code != simdjson::SUCCESS) {
    throw data_error(fmt::format("not a JSON object: {}", simdjson::error_message(code)));
  }
  dom::object record;
  if (element.get_object().get(record) != simdjson::SUCCESS) throw data_error("the line is not a JSON object");
  dom::element value;
  const bool has_audio = find_field(record, {"audio", "audio_filepath"}, value);
  if (need_audio) {
    if (!has_audio) {
      throw data_error("no field 'audio'")
          .mend("a record is {\"audio\": FILE, \"text\": TRANSCRIPT, \"duration\": SECONDS}");
    }
    utterance.audio = in_folder(folder, audio_field(value));
  }
  if (find_field(record, {"text", "sentence"}, value)) {
    utterance.text = string_field(value, "text");
  } else if (need_text) {
    throw data_error("no field 'text'").mend("give the transcript; an empty one where nothing is said");
  }
  if (find_field(record, {"language"}, value)) utterance.language = string_field(value, "language");
  if (find_field(record, {"id"}, value)) {
    std::int64_t number = 0;
    utterance.id =
        value.get_int64().get(number) == simdjson::SUCCESS ? std::to_string(number) : string_field(value, "id");
  }
  if (find_field(record, {"duration"}, value)) utterance.duration = seconds_field(value, "duration");
  if (find_field(record, {"offset"}, value)) {
    utterance.start = seconds_field(value, "offset");
    if (utterance.duration > 0) utterance.seconds = utterance.duration;
  }
}

void parse_json_manifest(LineReader& lines, const std::filesystem::path& folder, UtteranceSink& sink) {
  static_assert(LineReader::kPadding >= simdjson::SIMDJSON_PADDING);
  std::string_view line;
  while (lines.next(line)) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    sink.add(place(lines), [&](Utterance& utterance) {
      parse_json_utterance(line, true, folder, true, sink.options().need_text, utterance);
    });
  }
}

std::unordered_map<std::string, double> parse_clip_durations(LineReader& lines) {
  const Columns columns(lines);
  const std::size_t clip = columns.need({"clip", "path"}), duration = columns.need({"duration[ms]", "duration"});
  std::unordered_map<std::string, double> durations;
  std::vector<std::string_view> fields;
  std::string_view line;
  while (lines.next(line)) {
    if (line.empty()) continue;
    split_tabs(line, fields);
    if (fields.size() != columns.size()) {
      throw storage_error(fmt::format("a row of {} fields where {} are expected", fields.size(), columns.size()))
          .at(place(lines));
    }
    try {
      durations.emplace(fields[clip], parse_seconds(fields[duration], "the duration"));
    } catch (Error& failure) {
      throw storage_error(failure.message()).at(place(lines));
    }
  }
  return durations;
}

void parse_common_voice(LineReader& lines, const std::filesystem::path& clips,
                        const std::unordered_map<std::string, double>& durations, UtteranceSink& sink) {
  const Columns columns(lines);
  const std::size_t path = columns.need({"path"}), locale = columns.find("locale");
  const std::size_t sentence = sink.options().need_text ? columns.need({"sentence"}) : columns.find("sentence");
  std::vector<std::string_view> fields;
  std::string_view line;
  while (lines.next(line)) {
    if (line.empty()) continue;
    sink.add(place(lines), [&](Utterance& utterance) {
      require_valid_text(line);
      split_tabs(line, fields);
      if (fields.size() != columns.size()) {
        throw data_error(fmt::format("a row of {} fields where {} are expected", fields.size(), columns.size()));
      }
      // Old releases leave out the extension.
      std::string file(fields[path]);
      if (!file.empty() && std::filesystem::path(file).extension().empty()) file += ".mp3";
      utterance.audio = in_folder(clips, file);
      utterance.id = file;
      if (sentence < fields.size()) utterance.text = fields[sentence];
      if (locale < fields.size()) utterance.language = fields[locale];
      if (const auto known = durations.find(file); known != durations.end()) utterance.duration = known->second / 1000;
    });
  }
}

void parse_transcripts(LineReader& lines, const std::function<std::string(const std::string& id)>& recording,
                       UtteranceSink& sink) {
  std::string_view line;
  while (lines.next(line)) {
    const auto [id, text] = first_field(line);
    if (id.empty()) continue;
    sink.add(place(lines), [&, id = id, text = text](Utterance& utterance) {
      require_valid_text(line);
      if (id.find('\0') != std::string_view::npos) throw data_error("the recording's name holds a null character");
      utterance.id = id;
      utterance.text = text;
      utterance.audio = recording(utterance.id);
    });
  }
}

}  // namespace convoy
