// The state of a training run beside its tensors: training_state.json of a checkpoint. Nothing in it depends on the
// number of ranks or the layout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "base/json.h"

namespace convoy {

inline constexpr const char* kTrainingStateFile = "training_state.json";

// Where the run stands in its data: counted in samples, so that a resumed run may have another batch size.
struct DataCursor {
  std::int64_t epoch = 0;
  std::int64_t position = 0;      // samples of this epoch's order that are used up
  std::int64_t samples_seen = 0;  // over all epochs
  std::int64_t tokens_seen = 0;
  std::string fingerprint;  // of the data and its order; a resumed run compares it
  friend bool operator==(const DataCursor&, const DataCursor&) = default;
};

// Dynamic loss scaling (fp16), DeepSpeed's four values.
struct LossScaleState {
  double scale = 1;
  std::int64_t iteration = 0;
  std::int64_t last_overflow = -1;
  std::int64_t hysteresis = 1;
  friend bool operator==(const LossScaleState&, const LossScaleState&) = default;
};

// ReduceLROnPlateau's memory.
struct PlateauMemory {
  double learning_rate = 0;
  std::optional<double> best;
  std::int64_t bad_evaluations = 0;
  std::int64_t cooldown = 0;
  friend bool operator==(const PlateauMemory&, const PlateauMemory&) = default;
};

struct BestMetric {
  std::string name;  // "eval_loss"
  double value = 0;
  std::int64_t step = 0;
  friend bool operator==(const BestMetric&, const BestMetric&) = default;
};

struct TrainingState {
  static constexpr int kFormatVersion = 1;

  std::string convoy_version;
  std::int64_t step = 0;           // global steps: optimizer steps and skipped ones
  std::int64_t adam_step = 0;      // t of the bias correction
  std::int64_t schedule_step = 0;  // t of the learning-rate schedule
  std::int64_t skipped_steps = 0;  // steps dropped for a gradient that was not finite
  std::int64_t global_batch_size = 0;
  std::uint64_t seed = 0;
  std::uint64_t data_seed = 0;
  DataCursor data;
  std::map<std::string, std::int64_t> counters;  // of other parts of the run, by their names
  std::optional<LossScaleState> loss_scale;
  std::optional<PlateauMemory> plateau;
  std::optional<BestMetric> best;
  std::optional<BestMetric> best_saved;  // of the evaluations whose step was saved
  friend bool operator==(const TrainingState&, const TrainingState&) = default;
};

Json to_json(const TrainingState& state);
// `where` (a file name) goes into the errors: data errors that name the key, for a key that is missing, unknown or of
// the wrong type, and for a format of a newer version.
TrainingState training_state_from_json(const Json& json, const std::string& where);

// The text of training_state.json, and its reading from a checkpoint folder.
std::string training_state_text(const TrainingState& state);
TrainingState read_training_state(const std::filesystem::path& checkpoint);

}  // namespace convoy
