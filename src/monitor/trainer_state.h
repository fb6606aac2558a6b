// trainer_state.json as Hugging Face's Trainer writes and reads it (transformers/trainer_callback.py, TrainerState).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "monitor/log_record.h"

namespace convoy {

struct TrainerState {
  std::optional<std::int64_t> best_global_step;
  std::optional<double> best_metric;
  std::optional<std::string> best_model_checkpoint;
  double epoch = 0;
  std::int64_t global_step = 0, max_steps = 0;
  std::int64_t num_train_epochs = 0;
  double logging_steps = 500, eval_steps = 500, save_steps = 500;
  std::int64_t train_batch_size = 1;  // of one micro-batch
  std::int64_t num_input_tokens_seen = 0;
  double total_flos = 0;
  std::vector<LogRecord> log_history;  // each with its "step"

  struct EarlyStopping {
    std::int64_t patience = 1, counter = 0;
    double threshold = 0;
    friend bool operator==(const EarlyStopping&, const EarlyStopping&) = default;
  };
  std::optional<EarlyStopping> early_stopping;
  bool should_training_stop = false;
};

// Sorted keys, two spaces, NaN and Infinity as Python's json module writes them.
std::string trainer_state_text(const TrainerState& state);
// Fields that are missing keep their defaults; unknown ones are ignored, as files of other versions have them. A field
// of the wrong type is a data error that names it; `name` is the file.
TrainerState parse_trainer_state(const std::string& text, const std::string& name);

void write_trainer_state(const std::filesystem::path& file, const TrainerState& state);
TrainerState read_trainer_state(const std::filesystem::path& file);

}  // namespace convoy
