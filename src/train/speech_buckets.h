// Micro-batches of recordings of like duration: the shapes that a run has, and what of its samples goes where.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/loader.h"
#include "plan/program_set.h"
#include "train/speech_data.h"

namespace convoy {

struct SpeechBuckets {
  // By rising length. A model that masks padding has windows as long as its bucket; else windows are whole, and only
  // the text is shorter.
  std::vector<BatchShape> shapes;
  std::vector<std::int64_t> frames;  // SpeechSize::frames of a bucket's longest sample, by bucket
  BatchShape one_shape;              // what every micro-batch would be without buckets, but for its rows

  // The one that a sample belongs to: the first with room for its sound and its text.
  std::size_t bucket_of(const SpeechSize& size) const;
  // For the loader, of documents of these sizes.
  std::shared_ptr<const BucketRows> rows(std::span<const SpeechSize> sizes) const;
  // The shapes, and how much of an epoch's computation is padding, with buckets and without. `documents` of `sizes` are
  // seen in `steps` of each bucket, of so many micro-batches each.
  std::string text(std::span<const SpeechSize> sizes, std::span<const DocumentId> documents,
                   std::span<const std::int64_t> steps, std::int64_t micro_batches) const;
};

// As duration_buckets and batch_seconds say, for samples of these sizes (those of all the run's files): bounds in
// seconds, or as many as given, chosen so that sound is padded least. A bucket's rows are as long as the texts of
// nearly all its samples; a sample with more text goes to a longer one. Throws usage and data errors.
SpeechBuckets choose_buckets(const RunConfig& config, const AudioInput& input, const TrainShape& shape,
                             std::span<const SpeechSize> sizes);

// Makes them the shapes of a run.
void set_buckets(const std::optional<SpeechBuckets>& buckets, TrainShape& shape);

}  // namespace convoy
