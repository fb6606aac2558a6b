// Readers of single formats, and how a flat record becomes a sample. Internal to data/.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/source.h"

namespace convoy {

std::unique_ptr<RecordReader> json_lines_reader(std::unique_ptr<ByteStream> stream, const std::string& name,
                                                const SourceOptions& options);
std::unique_ptr<RecordReader> json_array_reader(std::unique_ptr<ByteStream> stream, const std::string& name,
                                                const SourceOptions& options);
std::unique_ptr<RecordReader> delimited_reader(std::unique_ptr<ByteStream> stream, const std::string& name,
                                               char delimiter, const SourceOptions& options);
std::unique_ptr<RecordReader> text_reader(std::unique_ptr<ByteStream> stream, const std::string& name,
                                          const SourceOptions& options);

// Needs the file itself: its directory stands at its end.
std::unique_ptr<RecordReader> parquet_reader(const std::filesystem::path& file, const SourceOptions& options);

// Reads records that are JSON texts of their own into samples whose `where` is set.
class JsonRecordParser {
 public:
  JsonRecordParser();
  ~JsonRecordParser();
  // Throws data errors. `what` names the record ("the row"). The text may be extended for the parser.
  void read(std::string& json, const std::string& what, const SourceOptions& options, Sample& sample);

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

// The kind of a record that has these fields. Throws a data error that lists them when none fits.
SampleKind kind_of(const std::vector<std::string>& present, const SourceOptions& options);

// instruction/input/output: one exchange, both as messages and as prompt and completion.
void set_instruction(Sample& sample, std::string_view system, std::string_view instruction, std::string_view input,
                     std::string_view output);

// Finds a field of a flat record by name: its text, or null.
using FieldLookup = std::function<const std::string*(const std::string&)>;
// A story, its endings and the right one. `present`: the record's fields, in order. Known are the columns of the
// ROCStories cloze test (InputSentence1 … 4, RandomFifthSentenceQuiz1 and 2, AnswerRightEnding), and plain ones: story,
// context or sentence1 …; ending1 … or ending0 …; and a label that says the number of the right ending's column.
void read_choice(const std::vector<std::string>& present, const FieldLookup& find, const FieldNames& names,
                 Sample& sample);

// A data error with line and byte where `text` is not valid UTF-8. `what` names the record.
void require_utf8(std::string_view text, const std::string& where);

}  // namespace convoy
