// Saves checkpoints beside training: what a rank holds is copied to host memory, and a thread of its own writes it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "train/run_checkpoint.h"

namespace convoy {

class CheckpointSaver {
 public:
  struct Finished {
    std::int64_t step = 0;
    std::filesystem::path folder;
    double seconds = 0;  // from the start to the checkpoint under its name
    double stall = 0;    // of these, how long training stood still
  };
  // `communicator` joins the ranks; null for one.
  CheckpointSaver(CheckpointStore& store, Communicator* communicator);
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Starts a checkpoint; none may be under way. All ranks must call.
  void start(std::int64_t step, const CheckpointContent& content);
  // The checkpoint that was finished since the last call. Rethrows what went wrong while it was written.
  std::optional<Finished> poll();
  bool under_way() const { return job_ != nullptr; }
  // Waits for the one under way, if there is one; poll() then tells of it. All ranks must call. Throws if another rank
  // is lost meanwhile.
  void wait();

 private:
  struct Job;
  CheckpointStore& store_;
  Communicator* communicator_;
  std::unique_ptr<Job> job_;
  bool met_ = true;  // the ranks, since the last start
};

}  // namespace convoy
