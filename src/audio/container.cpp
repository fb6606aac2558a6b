#include "audio/container.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace convoy {
namespace {

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::uint32_t little_endian(std::string_view four) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= std::uint32_t{static_cast<unsigned char>(four[i])} << (8 * i);
  return value;
}

std::string missing_in_riff(std::string_view file) {
  std::size_t at = 12;
  while (at + 8 <= file.size()) {
    const std::uint32_t size = little_endian(file.substr(at + 4, 4));
    const std::size_t rest = file.size() - at - 8;
    if (file.substr(at, 4) == "data") {
      constexpr std::uint32_t kUnknown = 0x7ffff000u;  // what programs that write to a pipe put there is this or more
      if (size <= rest || size >= kUnknown) return "";
      return fmt::format("its header promises {} bytes of samples and {} are there", size, rest);
    }
    if (size > rest) return "";
    at += 8 + std::size_t{size} + size % 2;
  }
  return "";
}

std::string missing_in_ogg(std::string_view file) {
  // A page is at most 65307 bytes; the last one that begins must also end.
  const std::size_t last = file.rfind("OggS");
  constexpr std::size_t kHeader = 27;
  const std::string_view page = file.substr(last);
  std::size_t needed = kHeader;
  if (page.size() >= kHeader) {
    const auto segments = static_cast<unsigned char>(page[26]);
    needed += segments;
    for (std::size_t i = 0; i < segments && kHeader + i < page.size(); ++i) {
      needed += static_cast<unsigned char>(page[kHeader + i]);
    }
  }
  return page.size() < needed ? "its last page is not whole" : "";
}

}  // namespace

void require_known_container(std::span<const std::byte> bytes, const std::string& name) {
  const std::string_view head = text_of(bytes.first(std::min<std::size_t>(bytes.size(), 256)));
  const auto refuse = [&](std::string_view what, std::string_view remedy) {
    throw data_error(fmt::format("this is {}", what)).at(name).mend(std::string(remedy));
  };
  constexpr std::string_view kConvert = "convert it, such as with ffmpeg -i FILE FILE.flac";
  if (head.size() >= 8 && head.substr(4, 4) == "ftyp") refuse("an MP4 or M4A file, which is not read", kConvert);
  if (head.starts_with("\x1a\x45\xdf\xa3")) refuse("a WebM or Matroska file, which is not read", kConvert);
  if (head.starts_with("\x30\x26\xb2\x75")) refuse("a WMA file, which is not read", kConvert);
  if (head.starts_with("#!AMR")) refuse("an AMR file, which is not read", kConvert);
  if (head.starts_with("ADIF") || head.starts_with("\xff\xf1") || head.starts_with("\xff\xf9"))
    refuse("an AAC file, which is not read", kConvert);
  if (head.starts_with("version https://git-lfs"))
    refuse("a Git LFS pointer, not the recording itself", "fetch the recordings with git lfs pull");
  if (head.starts_with("<!DOCTYPE") || head.starts_with("<!doctype") || head.starts_with("<html"))
    refuse("a web page, not a recording", "fetch the recording again");
}

std::string missing_end(std::span<const std::byte> bytes) {
  const std::string_view file = text_of(bytes);
  if (file.size() >= 12 && file.starts_with("RIFF") && file.substr(8, 4) == "WAVE") return missing_in_riff(file);
  if (file.starts_with("OggS")) return missing_in_ogg(file);
  return "";
}

}  // namespace convoy
