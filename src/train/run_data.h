// The tokens of a run: what is trained on, what is held out, and how rows are made of them.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "config/run_config.h"
#include "data/loader.h"
#include "data/token_cache.h"
#include "plan/program_set.h"
#include "text/tokenizer.h"
#include "train/run_setup.h"
#include "train/speech_buckets.h"

namespace convoy {

struct RunData {
  std::shared_ptr<const TokenData> train, validation;  // may be one object, or null
  std::shared_ptr<const TokenData> test;               // or null
  std::vector<DocumentId> train_documents, validation_documents;
  RowOptions rows;
  LoaderOptions loading;
  std::int64_t eval_rows = 1;
  TokenId pad_id = 0;
  // Models that hear: the recordings behind the documents.
  std::shared_ptr<const SpeechSource> train_speech, validation_speech, test_speech;
  std::optional<SpeechBuckets> buckets;  // see use_buckets

  bool has_validation() const { return validation != nullptr && !validation_documents.empty(); }
  std::unique_ptr<Loader> training_loader(const Cursor& start) const;
  std::unique_ptr<Loader> validation_loader(const Cursor& start) const;
  std::unique_ptr<Loader> test_loader(const Cursor& start) const;
  // Equal exactly when the rows of every epoch are.
  std::string fingerprint() const;

 private:
  void hear(const std::shared_ptr<const SpeechSource>& speech, LoaderOptions& options) const;
  std::unique_ptr<Loader> evaluation_loader(const std::shared_ptr<const TokenData>& data,
                                            const std::shared_ptr<const SpeechSource>& speech,
                                            const std::vector<DocumentId>& documents, const Cursor& start) const;
};

// Tokenises (or opens the cache of) the files. `vocab` is the model's: a tokenizer with more tokens is a usage error.
// The first rank reads the files; the others open its cache afterwards, so all must call. The model says what they are:
// manifests of recordings for one that hears, a task's samples for one with a task's head.
RunData open_data(const RunConfig& config, const Tokenizer& tokenizer, const ModelSource& source,
                  const TrainShape& shape, Communicator& communicator);

// With duration_buckets: chooses the buckets of these data and makes them the shapes of the run. `shape` is the one
// that the data were opened with. Does nothing for other runs.
void use_buckets(const RunConfig& config, const ModelSource& source, RunData& data, TrainShape& shape);
// The buckets that open_data and use_buckets would make: reads the manifests and the recordings' headers.
std::optional<SpeechBuckets> plan_buckets(const RunConfig& config, const ModelSource& source, const TrainShape& shape);

// Only what is evaluated: validation_files, or what validation_split sets aside of train_files. Kept in no cache unless
// cache_dir is given. `all_targets`: every token counts, not only those that training would learn.
RunData open_evaluation_data(const RunConfig& config, const Tokenizer& tokenizer, const ModelSource& source,
                             const TrainShape& shape, bool all_targets, Communicator& communicator);

// Whether the run evaluates while it trains or afterwards, from its settings alone.
bool evaluates(const RunConfig& config);

}  // namespace convoy
