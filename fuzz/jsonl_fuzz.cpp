// The record readers: any bytes give samples or data errors, never a crash; and what they give is valid UTF-8.
// The first byte picks the format and the options.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "data/source.h"

namespace {

void require_text(const std::string& text) {
  if (convoy::find_invalid_utf8(text) != std::string_view::npos) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using convoy::SourceFormat;
  if (size == 0) return 0;
  constexpr SourceFormat kFormats[] = {SourceFormat::kJsonLines, SourceFormat::kJsonLines, SourceFormat::kJsonArray,
                                       SourceFormat::kCsv,       SourceFormat::kTsv,       SourceFormat::kText};
  convoy::SourceOptions options;
  options.text_unit = static_cast<convoy::TextUnit>(data[0] / 6 % 3);
  options.header = data[0] / 18 % 2 == 0;
  options.quoting = data[0] / 36 % 2 == 0;
  if (!options.header) options.fields.text = "0";
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto records = convoy::open_records(convoy::memory_stream(content), "fuzz", kFormats[data[0] % 6], options);
  while (true) {
    convoy::Sample sample;
    try {
      if (!records->next(sample)) return 0;
    } catch (const convoy::Error& failure) {
      if (failure.status() == convoy::Status::kInternal) std::abort();
      if (failure.status() == convoy::Status::kData) continue;  // the reader goes on behind a bad record
      return 0;
    }
    require_text(sample.text);
    require_text(sample.prompt);
    require_text(sample.completion);
    for (const convoy::ChatMessage& message : sample.messages) require_text(message.role + message.content);
    if (sample.where.empty()) std::abort();
  }
}
