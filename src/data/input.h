// Bytes of a source: plain, gzip or Zstandard, streamed; and lines of such a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

enum class Compression : std::uint8_t { kNone, kGzip, kZstd };

// By the first bytes of the file, so a wrong extension does no harm. Throws a storage error if it cannot be read.
Compression detect_compression(const std::filesystem::path& path);
// Without the extension of its compression: "a.jsonl.gz" to "a.jsonl".
std::filesystem::path without_compression(const std::filesystem::path& path);

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills up to `capacity` bytes; 0 only at the end. A damaged or truncated file is a storage error that names it.
  virtual std::size_t read(char* to, std::size_t capacity) = 0;
};

// Opens a file; gzip files may hold several members and Zstandard files several frames.
std::unique_ptr<ByteStream> open_stream(const std::filesystem::path& path);
// Bytes in memory, which must outlive the stream.
std::unique_ptr<ByteStream> memory_stream(std::string_view bytes);

// Splits a stream into lines (LF or CR LF). A byte order mark at the start is taken off; one of UTF-16 is a data error.
class LineReader {
 public:
  // `name` goes into errors.
  LineReader(std::unique_ptr<ByteStream> stream, std::string name);
  // Bytes that may be read past the end of a line (what simdjson asks for).
  static constexpr std::size_t kPadding = 64;

  // The next line without its end; false at the end of the stream. The view is valid until the next call.
  bool next(std::string_view& line);
  // The line ending of the last line as it was ("\n", "\r\n" or "" at the end of the stream).
  std::string_view ending() const { return ending_; }
  // Number of the last line, from 1.
  std::int64_t number() const { return number_; }
  // Bytes read so far.
  std::int64_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }
  // Everything from here on, as one text.
  std::string rest();

 private:
  void start();
  bool fill();
  std::unique_ptr<ByteStream> stream_;
  std::string name_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::int64_t number_ = 0, bytes_ = 0;
  std::string_view ending_;
  bool started_ = false, finished_ = false;
};

// Offset of the first byte that is not valid UTF-8, or npos.
std::size_t find_invalid_utf8(std::string_view text);

}  // namespace convoy
