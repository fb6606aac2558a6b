// Plain text: one document per file, paragraph or line.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "data/records.h"

namespace convoy {
namespace {

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\f\v") == std::string_view::npos;
}

class TextReader : public RecordReader {
 public:
  TextReader(std::unique_ptr<ByteStream> stream, const std::string& name, const SourceOptions& options)
      : lines_(std::move(stream), name), unit_(options.text_unit) {}

  bool next(Sample& sample) override {
    switch (unit_) {
      case TextUnit::kFile:
        return next_file(sample);
      case TextUnit::kParagraph:
        return next_paragraph(sample);
      case TextUnit::kLine:
        break;
    }
    return next_line(sample);
  }

  std::int64_t bytes() const override { return lines_.bytes(); }

 private:
  bool next_file(Sample& sample) {
    if (done_) return false;
    done_ = true;
    sample.text = lines_.rest();
    sample.where = lines_.name();
    require_utf8(sample.text, lines_.name() + ":1");
    return true;
  }

  // Line ends inside a paragraph stay as they are; the one at its end does not belong to it.
  bool next_paragraph(Sample& sample) {
    std::string_view line;
    std::string ending;
    std::int64_t first = 0;
    while (lines_.next(line)) {
      if (is_blank(line)) {
        if (first > 0) break;
        continue;
      }
      if (first == 0) first = lines_.number();
      sample.text += ending;
      sample.text += line;
      ending = lines_.ending();
    }
    if (first == 0) return false;
    sample.where = fmt::format("{}:{}", lines_.name(), first);
    require_utf8(sample.text, sample.where);
    return true;
  }

  bool next_line(Sample& sample) {
    std::string_view line;
    if (!lines_.next(line)) return false;
    sample.where = fmt::format("{}:{}", lines_.name(), lines_.number());
    require_utf8(line, sample.where);
    sample.text = line;
    return true;
  }

  LineReader lines_;
  TextUnit unit_;
  bool done_ = false;
};

}  // namespace

void require_utf8(std::string_view text, const std::string& where) {
  const std::size_t bad = find_invalid_utf8(text);
  if (bad == std::string_view::npos) return;
  // `where` ends in the number of the first line; the text may run over several.
  const std::string_view before = text.substr(0, bad);
  const auto feeds = static_cast<std::int64_t>(std::count(before.begin(), before.end(), '\n'));
  const std::size_t column = bad - (feeds > 0 ? before.rfind('\n') + 1 : 0);
  const std::size_t colon = where.rfind(':');
  const std::int64_t first = std::stoll(where.substr(colon + 1));
  throw data_error(fmt::format("not valid UTF-8: byte {} of the line is 0x{:02x}", column + 1,
                               static_cast<unsigned char>(text[bad])))
      .at(fmt::format("{}:{}", where.substr(0, colon), first + feeds))
      .mend("convert the file to UTF-8");
}

std::unique_ptr<RecordReader> text_reader(std::unique_ptr<ByteStream> stream, const std::string& name,
                                          const SourceOptions& options) {
  return std::make_unique<TextReader>(std::move(stream), name, options);
}

}  // namespace convoy
