// Micro-batches of samples of like length. A bucket takes the samples up to its length, and its micro-batches have as
// many rows as a budget allows: few shapes, little padding, and every micro-batch about as much work.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace convoy {

// Lengths are whole numbers of any unit, the same one throughout: frames, tokens, milliseconds.
struct BucketOptions {
  std::int64_t budget = 0;        // rows · padded length of a micro-batch stays within this
  std::int64_t max_rows = 0;      // 0: as many as the budget allows
  std::int64_t buckets = 8;       // at most so many
  std::int64_t multiple = 1;      // padded lengths are multiples of this
  std::int64_t fixed_length = 0;  // every sample is padded to this (Whisper: a chunk); 0: to its bucket's length
  std::int64_t world = 1;         // ranks
  std::int64_t accumulation = 1;  // micro-batches per rank and step
  std::uint64_t seed = 0;
  bool shuffle = true;
};

struct BucketShape {
  std::int64_t length = 0, rows = 0;
  friend bool operator==(const BucketShape&, const BucketShape&) = default;
};

// The world · accumulation micro-batches of a step, all of one bucket, so that ranks do equal work. Micro-batch i holds
// at most `rows` samples; fewer (down to none) only in the last step.
struct BucketStep {
  std::size_t bucket = 0;
  std::vector<std::vector<std::int64_t>> micro_batches;
};

// How much of what is computed is padding.
struct PaddingReport {
  std::int64_t samples = 0, steps = 0;
  std::int64_t used = 0;        // sum of the samples' lengths
  std::int64_t padded = 0;      // the same, each as long as its bucket
  std::int64_t computed = 0;    // with the empty rows of the last step
  std::int64_t one_length = 0;  // what one length for all would take: samples · the longest

  double waste() const;  // share of `computed` that is not `used`
  std::string text() const;
};

struct BucketPlan {
  std::vector<BucketStep> steps;
  PaddingReport padding;
};

class DurationBuckets {
 public:
  // Chooses the buckets' lengths so that these samples are padded least. Throws a usage error for options out of range,
  // and a data error for a sample that exceeds the budget (or fixed_length).
  DurationBuckets(std::span<const std::int64_t> lengths, const BucketOptions& options);
  // With buckets that are chosen already, by rising length. Of the options, ranks, accumulation, seed and shuffle
  // count.
  DurationBuckets(std::span<const std::int64_t> lengths, std::vector<BucketShape> shapes, const BucketOptions& options);

  const std::vector<BucketShape>& shapes() const { return shapes_; }  // by rising length
  const BucketOptions& options() const { return options_; }

  // The steps of an epoch: every sample once. Depends on (seed, epoch), the lengths, and world · accumulation, which
  // may be cut into ranks and accumulation in any way. What does not fill a whole step of its bucket moves to the next
  // longer one.
  BucketPlan plan(std::int64_t epoch) const { return plan(epoch, lengths_); }
  // With other lengths of the same samples, such as after a change of speed; none longer than the longest bucket.
  BucketPlan plan(std::int64_t epoch, std::span<const std::int64_t> lengths) const;

 private:
  std::vector<std::int64_t> lengths_;
  BucketOptions options_;
  std::vector<BucketShape> shapes_;
};

}  // namespace convoy
