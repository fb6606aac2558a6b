#include "data/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/files.h"
#include "base/suggest.h"
#include "data/records.h"

namespace convoy {
namespace {

template <typename T, std::size_t N>
using Names = std::array<std::pair<T, std::string_view>, N>;

constexpr Names<SourceFormat, 7> kFormats{{{SourceFormat::kAuto, "auto"},
                                           {SourceFormat::kJsonLines, "jsonl"},
                                           {SourceFormat::kJsonArray, "json"},
                                           {SourceFormat::kCsv, "csv"},
                                           {SourceFormat::kTsv, "tsv"},
                                           {SourceFormat::kText, "text"},
                                           {SourceFormat::kParquet, "parquet"}}};
constexpr Names<TextUnit, 3> kUnits{
    {{TextUnit::kFile, "file"}, {TextUnit::kParagraph, "paragraph"}, {TextUnit::kLine, "line"}}};
constexpr Names<SampleKind, 8> kKinds{{{SampleKind::kAuto, "auto"},
                                       {SampleKind::kMessages, "messages"},
                                       {SampleKind::kConversations, "conversations"},
                                       {SampleKind::kInstruction, "instruction"},
                                       {SampleKind::kPrompt, "prompt"},
                                       {SampleKind::kText, "text"},
                                       {SampleKind::kLabelled, "labelled"},
                                       {SampleKind::kChoice, "choice"}}};

template <typename T, std::size_t N>
std::string_view find_name(const Names<T, N>& names, T value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  throw internal_error("a value without a name");
}

template <typename T, std::size_t N>
T find_value(const Names<T, N>& names, std::string_view name, std::string_view what) {
  std::vector<std::string> known;
  for (const auto& [value, text] : names) {
    if (text == name) return value;
    known.emplace_back(text);
  }
  throw usage_error(fmt::format("unknown {} '{}'{}", what, name, did_you_mean(name, known)))
      .mend(fmt::format("use one of {}", fmt::join(known, ", ")));
}

SourceFormat format_by_content(const std::filesystem::path& path) {
  std::array<char, 4096> head{};
  const std::size_t n = open_stream(path)->read(head.data(), head.size());
  std::string_view text(head.data(), n);
  if (text.starts_with("PAR1")) return SourceFormat::kParquet;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return SourceFormat::kText;
  if (text[first] == '{') return SourceFormat::kJsonLines;
  // "[" may also begin a plain text; the start of an array of objects hardly does.
  if (text[first] == '[') {
    const std::size_t second = text.find_first_not_of(" \t\r\n", first + 1);
    if (second == std::string_view::npos || text[second] == '{' || text[second] == ']') return SourceFormat::kJsonArray;
  }
  return SourceFormat::kAuto;
}

SourceFormat detect_format(const std::filesystem::path& path) {
  std::string extension = without_compression(path).extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (extension == ".jsonl" || extension == ".ndjson") return SourceFormat::kJsonLines;
  if (extension == ".csv") return SourceFormat::kCsv;
  if (extension == ".tsv" || extension == ".tab") return SourceFormat::kTsv;
  if (extension == ".parquet") return SourceFormat::kParquet;
  if (extension == ".txt" || extension == ".text" || extension == ".md") return SourceFormat::kText;
  const SourceFormat format = format_by_content(path);
  if (format == SourceFormat::kAuto) {
    throw usage_error("the format of the file is plain neither from its name nor from its content")
        .at(path.string())
        .mend("name it: format jsonl, json, csv, tsv, parquet or text");
  }
  return format;
}

}  // namespace

std::string_view name_of(SourceFormat format) {
  return find_name(kFormats, format);
}
SourceFormat parse_source_format(std::string_view name) {
  return find_value(kFormats, name, "source format");
}
std::string_view name_of(TextUnit unit) {
  return find_name(kUnits, unit);
}
TextUnit parse_text_unit(std::string_view name) {
  return find_value(kUnits, name, "text unit");
}
std::string_view name_of(SampleKind kind) {
  return find_name(kKinds, kind);
}
SampleKind parse_sample_kind(std::string_view name) {
  return find_value(kKinds, name, "kind of sample");
}

std::vector<SourceFile> resolve_sources(const SourceOptions& options) {
  if (options.paths.empty()) throw usage_error("no data files are named").mend("name files or patterns");
  std::vector<SourceFile> files;
  for (const std::string& pattern : options.paths) {
    const std::vector<std::filesystem::path> paths = expand_glob(pattern);
    if (paths.empty()) {
      throw usage_error(fmt::format("no file matches '{}'", pattern)).mend("check the path and the current folder");
    }
    for (const std::filesystem::path& path : paths) {
      if (std::filesystem::is_directory(path)) {
        throw usage_error(fmt::format("{} is a folder", path.string()))
            .mend(fmt::format("name its files, such as '{}'", (path / "*.jsonl").string()));
      }
      files.push_back({path, options.format == SourceFormat::kAuto ? detect_format(path) : options.format});
    }
  }
  return files;
}

std::unique_ptr<RecordReader> open_records(std::unique_ptr<ByteStream> stream, const std::string& name,
                                           SourceFormat format, const SourceOptions& options) {
  switch (format) {
    case SourceFormat::kJsonLines:
      return json_lines_reader(std::move(stream), name, options);
    case SourceFormat::kJsonArray:
      return json_array_reader(std::move(stream), name, options);
    case SourceFormat::kCsv:
      return delimited_reader(std::move(stream), name, ',', options);
    case SourceFormat::kTsv:
      return delimited_reader(std::move(stream), name, '\t', options);
    case SourceFormat::kText:
      return text_reader(std::move(stream), name, options);
    case SourceFormat::kParquet:
      throw internal_error("a Parquet file is read as a stream");
    case SourceFormat::kAuto:
      break;
  }
  throw internal_error("records are read before their format is known");
}

Error with_skip_remedy(Error error) {
  constexpr std::string_view kRemedy = "mend the record, or set skip_bad_samples to leave out such records";
  return error.mend(error.remedy().empty() ? std::string(kRemedy)
                                           : fmt::format("{}; or set skip_bad_samples", error.remedy()));
}

SampleReader::SampleReader(SourceOptions options, DataReport& report)
    : options_(std::move(options)), report_(report), files_(resolve_sources(options_)) {}

bool SampleReader::next_record(Sample& sample) {
  while (file_ < files_.size()) {
    if (records_ == nullptr) {
      const SourceFile& file = files_[file_];
      records_ = file.format == SourceFormat::kParquet
                     ? parquet_reader(file.path, options_)
                     : open_records(open_stream(file.path), file.path.string(), file.format, options_);
      ++report_.files;
    }
    sample = Sample{};
    if (records_->next(sample)) return true;
    report_.bytes += records_->bytes();
    records_ = nullptr;
    ++file_;
  }
  return false;
}

bool SampleReader::next(Sample& sample) {
  while (true) {
    try {
      if (!next_record(sample)) return false;
    } catch (const Error& failure) {
      if (failure.status() != Status::kData) throw;
      if (!options_.skip_bad_samples) throw with_skip_remedy(failure);
      ++report_.documents;
      report_.skip("malformed", failure.where(), failure.message());
      continue;
    }
    ++report_.documents;
    const bool text = sample.kind == Sample::Kind::kText || sample.kind == Sample::Kind::kLabelled ||
                      sample.kind == Sample::Kind::kChoice;
    const bool completes = sample.kind == Sample::Kind::kPrompt || sample.instruction;
    if (text && sample.text.find_first_not_of(" \t\n\r\f\v") == std::string::npos) {
      report_.skip("empty", sample.where, "no text");
    } else if (completes && sample.completion.empty()) {
      report_.skip("empty", sample.where, "nothing to answer with");
    } else {
      return true;
    }
  }
}

}  // namespace convoy
