#include "text/subtitles.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

namespace convoy {
namespace {

std::string clock(double seconds, char point) {
  const auto all = static_cast<std::int64_t>(std::llround(seconds < 0 ? 0 : seconds * 1000));
  return fmt::format("{:02}:{:02}:{:02}{}{:03}", all / 3600000, all / 60000 % 60, all / 1000 % 60, point, all % 1000);
}

std::string one_line(const std::string& text) {
  std::string line;
  for (char c : text) {
    if (c == '\r') continue;
    line += c == '\n' ? ' ' : c;
  }
  const auto first = line.find_first_not_of(' ');
  if (first == std::string::npos) return {};
  return line.substr(first, line.find_last_not_of(' ') - first + 1);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':  // "-->" may not stand in a cue
        out += "&gt;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace

std::string to_srt(std::span<const Cue> cues) {
  std::string out;
  int number = 0;
  for (const Cue& cue : cues) {
    const std::string text = one_line(cue.text);
    if (text.empty()) continue;
    out += fmt::format("{}\n{} --> {}\n{}\n\n", ++number, clock(cue.start, ','), clock(cue.end, ','), text);
  }
  return out;
}

std::string to_vtt(std::span<const Cue> cues) {
  std::string out = "WEBVTT\n\n";
  for (const Cue& cue : cues) {
    const std::string text = one_line(cue.text);
    if (text.empty()) continue;
    out += fmt::format("{} --> {}\n{}\n\n", clock(cue.start, '.'), clock(cue.end, '.'), escaped(text));
  }
  return out;
}

}  // namespace convoy
