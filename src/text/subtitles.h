// Subtitles: SubRip (SRT) and WebVTT.
#pragma once

#include <span>
#include <string>

namespace convoy {

struct Cue {
  double start = 0, end = 0;  // seconds
  std::string text;           // line breaks become spaces: an empty line would end the cue
};

// Cues without text are left out.
std::string to_srt(std::span<const Cue> cues);
std::string to_vtt(std::span<const Cue> cues);

}  // namespace convoy
