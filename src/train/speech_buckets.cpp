#include "train/speech_buckets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"

namespace convoy {
namespace {

constexpr double kFramesPerSecond = 100;    // of log-mel features
constexpr std::int64_t kSlackFrames = 5;    // by which SpeechSize::frames may exceed a recording's duration
constexpr std::int64_t kTokenMultiple = 8;  // of a row
constexpr double kTextShare = 0.98;         // of a bucket's samples whose text fits into its rows

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

double seconds(std::int64_t frames) {
  return static_cast<double>(frames) / kFramesPerSecond;
}

// A number of buckets, or their bounds.
std::vector<double> given_numbers(const RunConfig& config) {
  const std::string remedy =
      "give a number of buckets, such as 6, or their bounds in rising seconds, such as 4,8,16,30";
  const std::vector<double> given = numbers_of(config, "duration_buckets", config.duration_buckets, remedy);
  double before = 0;
  for (const double number : given) {
    if (number <= before) {
      throw usage_error(fmt::format("duration_buckets: {} is not above {}", number, before))
          .at(config.source_of("duration_buckets"))
          .mend(remedy);
    }
    before = number;
  }
  return given;
}

// A length of frames as windows hold it.
std::int64_t in_windows(std::int64_t frames, const AudioInput& input) {
  return frames <= input.frames ? std::min(rounded_up(frames, input.frame_multiple), input.frames)
                                : rounded_up(frames, input.frames);
}

std::vector<std::int64_t> chosen_lengths(std::span<const SpeechSize> sizes, const AudioInput& input, double count,
                                         const RunConfig& config) {
  if (count != std::floor(count) || count > 64) {
    throw usage_error(fmt::format("duration_buckets: {} is no number of buckets from 1 to 64", count))
        .at(config.source_of("duration_buckets"))
        .mend("give a whole number, or two bounds in seconds or more");
  }
  std::vector<std::int64_t> lengths;
  for (const SpeechSize& size : sizes) lengths.push_back(in_windows(size.frames, input));
  BucketOptions options;
  options.budget = *std::max_element(lengths.begin(), lengths.end());
  options.buckets = static_cast<std::int64_t>(count);
  options.multiple = input.frame_multiple;
  std::vector<std::int64_t> made;
  const DurationBuckets chosen(lengths, options);
  for (const BucketShape& shape : chosen.shapes()) made.push_back(shape.length);
  return made;
}

std::vector<std::int64_t> given_lengths(std::span<const SpeechSize> sizes, const AudioInput& input,
                                        const std::vector<double>& bounds, const RunConfig& config) {
  std::int64_t longest = 0;
  for (const SpeechSize& size : sizes) longest = std::max(longest, in_windows(size.frames, input));
  std::vector<std::int64_t> made;
  for (const double bound : bounds)
    made.push_back(static_cast<std::int64_t>(std::ceil(bound * kFramesPerSecond)) + kSlackFrames);
  if (in_windows(made.back(), input) < longest) {
    throw usage_error(fmt::format("a recording lasts {:.2f} s (at its slowest speed), longer than the last of "
                                  "duration_buckets",
                                  seconds(longest)))
        .at(config.source_of("duration_buckets"))
        .mend("add a bound that takes it, or leave the recording out of the manifest");
  }
  return made;
}

// Rows of the text of nearly all of a bucket's samples, of all in the last one; never shorter than the bucket before.
void set_texts(std::span<const SpeechSize> sizes, SpeechBuckets& made) {
  std::vector<std::vector<std::int64_t>> tokens(made.frames.size());
  std::int64_t most = 1;
  for (const SpeechSize& size : sizes) {
    const auto bucket = std::lower_bound(made.frames.begin(), made.frames.end(), size.frames) - made.frames.begin();
    tokens[static_cast<std::size_t>(bucket)].push_back(size.tokens);
    most = std::max(most, size.tokens);
  }
  std::int64_t before = 1;
  for (std::size_t b = 0; b < tokens.size(); ++b) {
    std::vector<std::int64_t>& of_bucket = tokens[b];
    std::sort(of_bucket.begin(), of_bucket.end());
    std::int64_t needed = most;
    if (b + 1 < tokens.size()) {
      const auto count = static_cast<double>(of_bucket.size());
      needed = of_bucket.empty() ? before : of_bucket[static_cast<std::size_t>(std::ceil(kTextShare * count)) - 1];
    }
    before = std::max(before, std::min(rounded_up(needed, kTokenMultiple), made.one_shape.seq));
    made.shapes[b].seq = before;
  }
}

// Buckets that no sample needs, because there is none or because the next one has the same shape, go.
void drop_needless(std::span<const SpeechSize> sizes, SpeechBuckets& made) {
  std::vector<bool> used(made.shapes.size());
  for (const SpeechSize& size : sizes) used[made.bucket_of(size)] = true;
  SpeechBuckets kept{{}, {}, made.one_shape};
  for (std::size_t b = 0; b < made.shapes.size(); ++b) {
    if (!used[b] || (b + 1 < made.shapes.size() && made.shapes[b] == made.shapes[b + 1])) continue;
    kept.shapes.push_back(made.shapes[b]);
    kept.frames.push_back(made.frames[b]);
  }
  made = std::move(kept);
}

}  // namespace

std::size_t SpeechBuckets::bucket_of(const SpeechSize& size) const {
  for (std::size_t b = 0; b < shapes.size(); ++b) {
    if (size.frames <= frames[b] && size.tokens <= shapes[b].seq) return b;
  }
  throw internal_error("a sample longer than every bucket");
}

std::shared_ptr<const BucketRows> SpeechBuckets::rows(std::span<const SpeechSize> sizes) const {
  auto made = std::make_shared<BucketRows>();
  for (std::size_t b = 0; b < shapes.size(); ++b) {
    made->shapes.push_back({frames[b], shapes[b].rows});
    made->row_length.push_back(shapes[b].seq);
  }
  for (const SpeechSize& size : sizes) {
    const std::size_t bucket = bucket_of(size);
    // One that its text has taken to a longer bucket counts as one that only this bucket takes.
    made->lengths.push_back(std::max(size.frames, bucket == 0 ? 0 : frames[bucket - 1] + 1));
  }
  return made;
}

std::string SpeechBuckets::text(std::span<const SpeechSize> sizes, std::span<const DocumentId> documents,
                                std::span<const std::int64_t> steps, std::int64_t micro_batches) const {
  std::string text;
  std::int64_t sound = 0, words = 0, computed = 0, tokens = 0;
  for (const DocumentId document : documents) {
    sound += sizes[static_cast<std::size_t>(document)].sound;
    words += sizes[static_cast<std::size_t>(document)].tokens;
  }
  for (std::size_t b = 0; b < shapes.size(); ++b) {
    const BatchShape& shape = shapes[b];
    const std::int64_t rows = steps[b] * micro_batches * shape.rows;
    computed += rows * shape.audio_windows * shape.audio_frames;
    tokens += rows * shape.seq;
    text += fmt::format("\n  to {:6.2f} s: {} rows of {:.2f} s and {} tokens, {} steps", seconds(frames[b]), shape.rows,
                        seconds(shape.audio_windows * shape.audio_frames), shape.seq, steps[b]);
  }
  const auto count = static_cast<std::int64_t>(documents.size());
  const auto padding = [](std::int64_t used, std::int64_t all) {
    return all == 0 ? 0.0 : 100 * (1 - static_cast<double>(used) / static_cast<double>(all));
  };
  return fmt::format(
      "{} duration buckets: {:.1f} % of the audio and {:.1f} % of the tokens that are computed are padding; without "
      "buckets {:.1f} % and {:.1f} %{}",
      shapes.size(), padding(sound, computed), padding(words, tokens),
      padding(sound, count * one_shape.audio_windows * one_shape.audio_frames), padding(words, count * one_shape.seq),
      text);
}

SpeechBuckets choose_buckets(const RunConfig& config, const AudioInput& input, const TrainShape& shape,
                             std::span<const SpeechSize> sizes) {
  if (sizes.empty()) throw data_error("there are no recordings to put into buckets").mend("check the manifests");
  const std::vector<double> given = given_numbers(config);
  std::vector<std::int64_t> lengths = given.size() == 1 ? chosen_lengths(sizes, input, given.front(), config)
                                                        : given_lengths(sizes, input, given, config);
  std::set<std::int64_t> needed;  // those that are the first with room for some sample
  for (std::int64_t& length : lengths) length = std::min(in_windows(length, input), shape.audio_windows * input.frames);
  for (const SpeechSize& size : sizes) needed.insert(*std::lower_bound(lengths.begin(), lengths.end(), size.frames));
  lengths = std::vector<std::int64_t>(needed.begin(), needed.end());
  SpeechBuckets made;
  made.one_shape = {shape.rows, shape.seq, shape.audio_windows, shape.audio_frames};
  made.frames = lengths;
  for (const std::int64_t length : lengths) {
    BatchShape each;
    each.audio_windows = (length + input.frames - 1) / input.frames;
    each.audio_frames = input.masks_padding ? std::min(length, input.frames) : input.frames;
    const std::int64_t padded = each.audio_windows * each.audio_frames;
    each.rows = static_cast<std::int64_t>(*config.batch_seconds * kFramesPerSecond) / padded;
    if (each.rows < 1) {
      throw usage_error(
          fmt::format("batch_seconds {} is less than a row of {} s", *config.batch_seconds, seconds(padded)))
          .at(config.source_of("batch_seconds"))
          .mend(input.masks_padding ? "raise it, or leave out longer recordings"
                                    : "raise it: without mask_audio_padding every window is as long as the model's");
    }
    made.shapes.push_back(each);
  }
  set_texts(sizes, made);
  drop_needless(sizes, made);
  return made;
}

void set_buckets(const std::optional<SpeechBuckets>& buckets, TrainShape& shape) {
  if (!buckets) return;
  const BatchShape& longest = buckets->shapes.back();
  const std::int64_t chunk = shape.loss.chunk_rows;
  shape.rows = longest.rows;
  shape.seq = longest.seq;
  shape.audio_windows = longest.audio_windows;
  shape.audio_frames = longest.audio_frames;
  if (shape.eval_rows > 0) shape.eval_rows = longest.rows;
  shape.shorter.assign(buckets->shapes.begin(), buckets->shapes.end() - 1);
  shape.loss.chunk_rows = std::min(chunk, shape.tokens());
}

}  // namespace convoy
