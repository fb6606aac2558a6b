// Sources of text: files of JSON lines, JSON arrays, CSV, TSV, Parquet or plain text, read one sample at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/input.h"
#include "data/report.h"
#include "text/chat.h"

namespace convoy {

enum class SourceFormat : std::uint8_t { kAuto, kJsonLines, kJsonArray, kCsv, kTsv, kText, kParquet };
// "auto", "jsonl", "json", "csv", "tsv", "text", "parquet"; the parser throws a usage error that names the nearest.
std::string_view name_of(SourceFormat format);
SourceFormat parse_source_format(std::string_view name);

// What one document of a plain-text file is.
enum class TextUnit : std::uint8_t { kFile, kParagraph, kLine };
std::string_view name_of(TextUnit unit);
TextUnit parse_text_unit(std::string_view name);  // "file", "paragraph" (parted by blank lines), "line"

// What a record is taken for; kAuto: the first of these whose fields it has, in this order.
// The last two are never guessed: a task's samples.
enum class SampleKind : std::uint8_t {
  kAuto,
  kMessages,
  kConversations,
  kInstruction,
  kPrompt,
  kText,
  kLabelled,  // a text and its class
  kChoice     // a story, its possible endings and which of them is right; see records.h
};
std::string_view name_of(SampleKind kind);
SampleKind parse_sample_kind(std::string_view name);  // "auto", "messages", "conversations", "instruction", …

// Names of the fields (JSON) or columns (CSV, TSV; without a header row they are called "0", "1", …).
struct FieldNames {
  std::string text = "text";
  std::string messages = "messages", role = "role", content = "content", metadata = "metadata", weight = "weight";
  std::string conversations = "conversations", from = "from", value = "value";
  std::string instruction = "instruction", input = "input", output = "output", system = "system";
  std::string prompt = "prompt", completion = "completion";
  std::string label = "label";
};

struct SourceOptions {
  std::vector<std::string> paths;  // files or shell patterns, in this order; each pattern's files sorted
  SourceFormat format = SourceFormat::kAuto;
  SampleKind kind = SampleKind::kAuto;
  FieldNames fields;
  TextUnit text_unit = TextUnit::kFile;
  bool header = true;             // CSV, TSV: the first row names the columns
  bool quoting = true;            // CSV, TSV: RFC 4180 quotes; false: a quote is a character like others
  bool skip_bad_samples = false;  // count and list malformed records instead of stopping at the first
};

struct Sample {
  enum class Kind : std::uint8_t { kText, kPrompt, kMessages, kLabelled, kChoice };
  Kind kind = Kind::kText;
  std::string text;                   // kText, kLabelled; kChoice: the story
  std::string label;                  // kLabelled: the class as it stands in the file
  std::vector<std::string> endings;   // kChoice
  std::int32_t right = -1;            // kChoice: which of the endings
  std::string prompt, completion;     // kPrompt, and kMessages made from instruction/input/output
  std::vector<ChatMessage> messages;  // kMessages
  std::string tools;                  // kMessages: the tools that the conversation may call, a JSON list; or empty
  // kMessages made from instruction/input/output, which can also do without a chat format.
  bool instruction = false;
  std::string where;  // "file:line"
};

struct SourceFile {
  std::filesystem::path path;
  SourceFormat format;  // never kAuto
};

// The files that the options name, with their formats found out. Throws a usage error for a pattern without files and
// for a file whose format is not plain from its name or content.
std::vector<SourceFile> resolve_sources(const SourceOptions& options);

// Reads the records of one stream.
class RecordReader {
 public:
  virtual ~RecordReader() = default;
  // False at the end. A malformed record is a data error with file, line and reason; reading may go on after it.
  virtual bool next(Sample& sample) = 0;
  virtual std::int64_t bytes() const = 0;
};
// `name` goes into errors. The options must outlive the reader. Parquet files cannot be streamed.
std::unique_ptr<RecordReader> open_records(std::unique_ptr<ByteStream> stream, const std::string& name,
                                           SourceFormat format, const SourceOptions& options);

// All samples of all files, in order.
class SampleReader {
 public:
  SampleReader(SourceOptions options, DataReport& report);
  // False at the end. Empty documents are counted in the report and passed over; so are malformed ones under
  // skip_bad_samples, which otherwise throw.
  bool next(Sample& sample);
  const std::vector<SourceFile>& files() const { return files_; }

 private:
  bool next_record(Sample& sample);
  SourceOptions options_;
  DataReport& report_;
  std::vector<SourceFile> files_;
  std::size_t file_ = 0;
  std::unique_ptr<RecordReader> records_;
};

// Adds what can be done about a malformed record to its error.
Error with_skip_remedy(Error error);

}  // namespace convoy
