// Samples from Parquet files: each row is read as the JSON record that it would be.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/parquet.h"
#include "data/records.h"

namespace convoy {
namespace {

// Those that a sample can be made of; others, such as recordings and pictures, are not even read.
std::vector<std::string> known_columns(const FieldNames& names) {
  return {names.text,   names.messages, names.conversations, names.instruction, names.input, names.output,
          names.system, names.prompt,   names.completion,    "tools",           "chosen",    "rejected"};
}

// Some writers do not mark text as such.
void bytes_to_text(Json& value) {
  if (value.is_binary()) {
    const Json::binary_t bytes = value.get_binary();
    value = std::string(bytes.begin(), bytes.end());
  } else if (value.is_structured()) {
    for (Json& inner : value) bytes_to_text(inner);
  }
}

class ParquetRecords final : public RecordReader {
 public:
  ParquetRecords(const std::filesystem::path& file, const SourceOptions& options)
      : name_(file.string()), options_(options), rows_(open_parquet(file)) {
    try {
      kind_of(rows_->columns(), options);
    } catch (const Error& failure) {  // of the whole file, not of a record that could be left out
      throw usage_error(failure.message()).at(name_).mend(failure.remedy());
    }
    rows_->select(known_columns(options.fields));
  }

  bool next(Sample& sample) override {
    Json row;
    if (!rows_->next(row)) return false;
    sample.where = fmt::format("{}, row {}", name_, ++number_);
    bytes_to_text(row);
    std::string text;
    try {
      text = row.dump();
    } catch (const Json::exception&) {
      throw data_error("a text is not valid UTF-8").at(sample.where);
    }
    bytes_ += static_cast<std::int64_t>(text.size());
    parser_.read(text, "the row", options_, sample);
    return true;
  }
  std::int64_t bytes() const override { return bytes_; }

 private:
  std::string name_;
  const SourceOptions& options_;
  std::unique_ptr<ParquetRows> rows_;
  JsonRecordParser parser_;
  std::int64_t number_ = 0, bytes_ = 0;
};

}  // namespace

std::unique_ptr<RecordReader> parquet_reader(const std::filesystem::path& file, const SourceOptions& options) {
  return std::make_unique<ParquetRecords>(file, options);
}

}  // namespace convoy
