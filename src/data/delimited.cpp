// CSV and TSV after RFC 4180: quoted fields may hold delimiters, line ends and doubled quotes.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/suggest.h"
#include "data/records.h"

namespace convoy {
namespace {

class DelimitedReader : public RecordReader {
 public:
  DelimitedReader(std::unique_ptr<ByteStream> stream, const std::string& name, char delimiter,
                  const SourceOptions& options)
      : lines_(std::move(stream), name), delimiter_(delimiter), options_(options) {}

  bool next(Sample& sample) override {
    if (columns_.empty() && !read_header()) return false;
    if (!next_row()) return false;
    sample.where = row_where();
    if (fields_.size() != columns_.size()) {
      throw data_error(fmt::format("a row of {} fields where {} are expected", fields_.size(), columns_.size()))
          .at(sample.where)
          .mend("quote fields that hold the delimiter, a quote or a line end");
    }
    try {
      fill(sample);
    } catch (Error& failure) {
      throw failure.at(sample.where);
    }
    return true;
  }

  std::int64_t bytes() const override { return lines_.bytes(); }

 private:
  std::string row_where() const { return fmt::format("{}:{}", lines_.name(), first_line_); }

  // Names the columns. Without a header row the first row is kept for next_row().
  bool read_header() {
    try {
      if (!next_row()) return false;
    } catch (const Error& failure) {
      // Without its first row nothing in the file can be read, so this is never a record to leave out.
      if (failure.status() != Status::kData) throw;
      throw storage_error(failure.message()).at(failure.where()).mend(failure.remedy());
    }
    if (options_.header) {
      columns_ = fields_;
    } else {
      for (std::size_t i = 0; i < fields_.size(); ++i) columns_.push_back(std::to_string(i));
      pending_ = true;
    }
    return true;
  }

  // Reads the next row that is not an empty line into fields_.
  bool next_row() {
    if (pending_) {
      pending_ = false;
      return true;
    }
    std::string_view line;
    do {
      if (!lines_.next(line)) return false;
    } while (line.empty());
    first_line_ = lines_.number();
    fields_.assign(1, {});
    require_utf8(line, row_where());
    if (!options_.quoting) {
      for (const char c : line) {
        if (c == delimiter_) {
          fields_.emplace_back();
        } else {
          fields_.back() += c;
        }
      }
      return true;
    }
    split_quoted(line);
    return true;
  }

  void split_quoted(std::string_view line) {
    std::size_t i = 0;
    while (true) {
      if (i < line.size() && line[i] == '"') {
        i = quoted(line, i + 1);
      } else {
        const std::size_t end = std::min(line.find(delimiter_, i), line.size());
        fields_.back() = line.substr(i, end - i);
        if (fields_.back().find('"') != std::string::npos) {
          throw data_error("a quote inside a field that does not begin with one")
              .at(row_where())
              .mend("quote the whole field and double the quotes in it, or turn quoting off");
        }
        i = end;
      }
      if (i == line.size()) return;
      if (line[i] != delimiter_) {
        throw data_error("text after a closing quote")
            .at(row_where())
            .mend("double the quotes inside a quoted field, or turn quoting off");
      }
      ++i;
      fields_.emplace_back();
    }
  }

  // Reads a quoted field from behind its opening quote, over line ends where need be; returns where it ends in `line`.
  std::size_t quoted(std::string_view& line, std::size_t i) {
    std::string& field = fields_.back();
    while (true) {
      const std::size_t quote = line.find('"', i);
      if (quote != std::string_view::npos) {
        field += line.substr(i, quote - i);
        if (quote + 1 >= line.size() || line[quote + 1] != '"') return quote + 1;
        field += '"';
        i = quote + 2;
        continue;
      }
      field += line.substr(i);
      field += lines_.ending();
      if (!lines_.next(line)) {
        throw data_error("a quoted field without an end")
            .at(row_where())
            .mend("close the quote that was opened in the row, or turn quoting off");
      }
      require_utf8(line, fmt::format("{}:{}", lines_.name(), lines_.number()));
      i = 0;
    }
  }

  const std::string* find(const std::string& column) const {
    const auto at = std::find(columns_.begin(), columns_.end(), column);
    return at == columns_.end() ? nullptr : &fields_[static_cast<std::size_t>(at - columns_.begin())];
  }

  // A missing column is missing in every row, so it is an error of usage and never skipped.
  const std::string& need(const std::string& column) const {
    if (const std::string* field = find(column)) return *field;
    throw usage_error(fmt::format("no column '{}'{}", column, did_you_mean(column, columns_)))
        .mend("name the columns to read, or check whether the file has a header row");
  }

  void fill(Sample& sample) const {
    const FieldNames& names = options_.fields;
    const auto optional = [&](const std::string& column) {
      const std::string* field = find(column);
      return field == nullptr ? std::string_view() : std::string_view(*field);
    };
    SampleKind kind{};
    try {
      kind = kind_of(columns_, options_);
    } catch (const Error& failure) {
      throw usage_error(failure.message()).mend(failure.remedy());
    }
    switch (kind) {
      case SampleKind::kText:
        sample.text = need(names.text);
        return;
      case SampleKind::kPrompt:
        sample.kind = Sample::Kind::kPrompt;
        sample.prompt = need(names.prompt);
        sample.completion = need(names.completion);
        return;
      case SampleKind::kInstruction:
        set_instruction(sample, optional(names.system), need(names.instruction), optional(names.input),
                        need(names.output));
        return;
      case SampleKind::kLabelled:
        sample.kind = Sample::Kind::kLabelled;
        sample.text = need(names.text);
        sample.label = need(names.label);
        return;
      case SampleKind::kChoice:
        read_choice(
            columns_, [&](const std::string& column) { return find(column); }, names, sample);
        return;
      default:
        throw usage_error(fmt::format("columns cannot hold samples of kind {}", name_of(kind)))
            .mend("use JSON lines for conversations");
    }
  }

  LineReader lines_;
  char delimiter_;
  const SourceOptions& options_;
  std::vector<std::string> columns_, fields_;
  std::int64_t first_line_ = 0;
  bool pending_ = false;
};

}  // namespace

std::unique_ptr<RecordReader> delimited_reader(std::unique_ptr<ByteStream> stream, const std::string& name,
                                               char delimiter, const SourceOptions& options) {
  return std::make_unique<DelimitedReader>(std::move(stream), name, delimiter, options);
}

}  // namespace convoy
