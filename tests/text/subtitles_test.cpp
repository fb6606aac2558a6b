#include "text/subtitles.h"

#include <gtest/gtest.h>

#include <vector>

namespace convoy {
namespace {

TEST(Subtitles, SubRip) {
  const std::vector<Cue> cues = {{0, 1.25, "one\ntwo"}, {2, 3, "  "}, {3661.0006, 3662.9996, " last "}};
  EXPECT_EQ(to_srt(cues),
            "1\n00:00:00,000 --> 00:00:01,250\none two\n\n"
            "2\n01:01:01,001 --> 01:01:03,000\nlast\n\n");
  EXPECT_EQ(to_srt({}), "");
}

TEST(Subtitles, WebVttEscapesWhatItReads) {
  const std::vector<Cue> cues = {{0.5, 1, "a <b> & c --> d"}};
  EXPECT_EQ(to_vtt(cues), "WEBVTT\n\n00:00:00.500 --> 00:00:01.000\na &lt;b&gt; &amp; c --&gt; d\n\n");
}

}  // namespace
}  // namespace convoy
