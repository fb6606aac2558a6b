#include "data/input.h"

#include <fmt/format.h>
#include <simdjson.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/files.h"

namespace convoy {
namespace {

Error damaged(const std::filesystem::path& path, std::string_view why) {
  return storage_error(fmt::format("cannot decompress {}: {}", path.string(), why))
      .mend("the file is damaged or incomplete; fetch it again");
}

class MemoryStream : public ByteStream {
 public:
  explicit MemoryStream(std::string_view bytes) : rest_(bytes) {}
  std::size_t read(char* to, std::size_t capacity) override {
    const std::size_t n = std::min(capacity, rest_.size());
    if (n > 0) std::memcpy(to, rest_.data(), n);
    rest_.remove_prefix(n);
    return n;
  }

 private:
  std::string_view rest_;
};

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(const std::filesystem::path& path) : file_(path), memory_(file_.text()) {}
  std::size_t read(char* to, std::size_t capacity) override { return memory_.read(to, capacity); }

 private:
  MappedFile file_;
  MemoryStream memory_;
};

class GzipStream : public ByteStream {
 public:
  explicit GzipStream(const std::filesystem::path& path) : path_(path), file_(path), rest_(file_.text()) {
    check(inflateInit2(&state_, 15 + 16) == Z_OK, "zlib does not start");
  }
  ~GzipStream() override { inflateEnd(&state_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  std::size_t read(char* to, std::size_t capacity) override {
    constexpr std::size_t kMost = std::numeric_limits<uInt>::max();
    capacity = std::min(capacity, kMost);
    while (true) {
      if (between_members_) {
        if (rest_.empty()) return 0;
        // Some writers pad with zeros after the last member.
        if (rest_.find_first_not_of('\0') == std::string_view::npos) return 0;
        inflateReset(&state_);
        between_members_ = false;
      }
      const auto given = static_cast<uInt>(std::min(rest_.size(), kMost));
      state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest_.data()));
      state_.avail_in = given;
      state_.next_out = reinterpret_cast<Bytef*>(to);
      state_.avail_out = static_cast<uInt>(capacity);
      const int status = inflate(&state_, Z_NO_FLUSH);
      rest_.remove_prefix(given - state_.avail_in);
      const std::size_t made = capacity - state_.avail_out;
      if (status == Z_STREAM_END) {
        between_members_ = true;
      } else if (status == Z_BUF_ERROR || (status == Z_OK && made == 0 && rest_.empty())) {
        throw damaged(path_, "it ends in the middle of a gzip member");
      } else if (status != Z_OK) {
        throw damaged(path_, state_.msg != nullptr ? state_.msg : "not gzip data");
      }
      if (made > 0) return made;
    }
  }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::string_view rest_;
  z_stream state_{};
  bool between_members_ = false;
};

class ZstdStream : public ByteStream {
 public:
  explicit ZstdStream(const std::filesystem::path& path) : path_(path), file_(path), state_(ZSTD_createDStream()) {
    check(state_ != nullptr, "zstd does not start");
    // Files of `zstd --long` need windows beyond the default.
    ZSTD_DCtx_setParameter(state_, ZSTD_d_windowLogMax, 31);
    input_ = {file_.bytes().data(), file_.bytes().size(), 0};
  }
  ~ZstdStream() override { ZSTD_freeDStream(state_); }
  ZstdStream(const ZstdStream&) = delete;
  ZstdStream& operator=(const ZstdStream&) = delete;

  std::size_t read(char* to, std::size_t capacity) override {
    ZSTD_outBuffer output{to, capacity, 0};
    while (output.pos == 0) {
      const bool at_end = input_.pos == input_.size;
      if (at_end && frame_done_) return 0;
      const std::size_t before = input_.pos;
      const std::size_t left = ZSTD_decompressStream(state_, &output, &input_);
      if (ZSTD_isError(left) != 0) throw damaged(path_, ZSTD_getErrorName(left));
      frame_done_ = left == 0;
      if (!frame_done_ && output.pos == 0 && input_.pos == before)
        throw damaged(path_, "it ends in the middle of a Zstandard frame");
    }
    return output.pos;
  }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  ZSTD_DStream* state_;
  ZSTD_inBuffer input_{};
  bool frame_done_ = true;
};

}  // namespace

Compression detect_compression(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  if (text.substr(0, 2) == "\x1f\x8b") return Compression::kGzip;
  if (text.substr(0, 4) == "\x28\xb5\x2f\xfd") return Compression::kZstd;
  // A skippable frame (pzstd and seekable files begin with one): magic 0x184D2A50…5F, little endian.
  if (text.size() >= 4 && text.substr(1, 3) == "\x2a\x4d\x18" && (static_cast<unsigned char>(text[0]) & 0xf0u) == 0x50u)
    return Compression::kZstd;
  return Compression::kNone;
}

std::filesystem::path without_compression(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".gz" || extension == ".zst" || extension == ".gzip" || extension == ".zstd"
             ? path.parent_path() / path.stem()
             : path;
}

std::unique_ptr<ByteStream> open_stream(const std::filesystem::path& path) {
  switch (detect_compression(path)) {
    case Compression::kGzip:
      return std::make_unique<GzipStream>(path);
    case Compression::kZstd:
      return std::make_unique<ZstdStream>(path);
    case Compression::kNone:
      break;
  }
  return std::make_unique<PlainStream>(path);
}

std::unique_ptr<ByteStream> memory_stream(std::string_view bytes) {
  return std::make_unique<MemoryStream>(bytes);
}

LineReader::LineReader(std::unique_ptr<ByteStream> stream, std::string name)
    : stream_(std::move(stream)), name_(std::move(name)), buffer_((std::size_t{1} << 16) + kPadding) {}

// Reads more behind what is buffered; false at the end of the stream.
bool LineReader::fill() {
  if (finished_) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ + kPadding == buffer_.size()) buffer_.resize(2 * buffer_.size());
  const std::size_t n = stream_->read(buffer_.data() + end_, buffer_.size() - kPadding - end_);
  finished_ = n == 0;
  end_ += n;
  bytes_ += static_cast<std::int64_t>(n);
  return n > 0;
}

void LineReader::start() {
  started_ = true;
  while (end_ - begin_ < 3 && fill()) {
  }
  const std::string_view head(buffer_.data() + begin_, end_ - begin_);
  if (head.substr(0, 3) == "\xef\xbb\xbf") {
    begin_ += 3;
  } else if (head.substr(0, 2) == "\xff\xfe" || head.substr(0, 2) == "\xfe\xff") {
    throw storage_error(fmt::format("{} is UTF-16 text", name_)).mend("convert it to UTF-8");
  }
}

bool LineReader::next(std::string_view& line) {
  if (!started_) start();
  std::size_t searched = 0;
  while (true) {
    const char* from = buffer_.data() + begin_ + searched;
    const auto* feed = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_ - searched));
    if (feed != nullptr) {
      line = {buffer_.data() + begin_, static_cast<std::size_t>(feed - (buffer_.data() + begin_))};
      begin_ += line.size() + 1;
      ending_ = "\n";
      if (line.ends_with('\r')) {
        line.remove_suffix(1);
        ending_ = "\r\n";
      }
      ++number_;
      return true;
    }
    searched = end_ - begin_;
    if (fill()) continue;
    if (begin_ == end_) return false;
    line = {buffer_.data() + begin_, end_ - begin_};
    begin_ = end_;
    ending_ = "";
    ++number_;
    return true;
  }
}

std::string LineReader::rest() {
  if (!started_) start();
  std::string text;
  do {
    text.append(buffer_.data() + begin_, end_ - begin_);
    begin_ = end_;
  } while (fill());
  return text;
}

std::size_t find_invalid_utf8(std::string_view text) {
  if (simdjson::validate_utf8(text.data(), text.size())) return std::string_view::npos;
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto tail = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  for (std::size_t i = 0; i < text.size();) {
    const unsigned b = byte(i);
    if (b < 0x80) {
      i += 1;
    } else if (b >= 0xc2 && b <= 0xdf && tail(i + 1)) {
      i += 2;
    } else if (b >= 0xe0 && b <= 0xef && tail(i + 1) && tail(i + 2) && !(b == 0xe0 && byte(i + 1) < 0xa0) &&
               !(b == 0xed && byte(i + 1) > 0x9f)) {
      i += 3;
    } else if (b >= 0xf0 && b <= 0xf4 && tail(i + 1) && tail(i + 2) && tail(i + 3) &&
               !(b == 0xf0 && byte(i + 1) < 0x90) && !(b == 0xf4 && byte(i + 1) > 0x8f)) {
      i += 4;
    } else {
      return i;
    }
  }
  throw internal_error("two UTF-8 checks disagree");
}

}  // namespace convoy
