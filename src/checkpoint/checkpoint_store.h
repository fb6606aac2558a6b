// Checkpoints of a run: folders `output_dir/checkpoint-N` that are whole or not there.
//
// A checkpoint is written into `checkpoint-N.tmp-…` beside its final place, every file synced, the manifest last, and
// then renamed. Whatever moment a process dies at, the checkpoints under their final names are whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checked_files.h"

namespace convoy {

struct CheckpointInfo {
  std::int64_t step = 0;
  std::filesystem::path folder;
};

struct DamagedCheckpoint {
  std::filesystem::path folder;
  std::vector<std::string> problems;
};

// One checkpoint being written. Unless it is committed, its folder is removed with it.
class CheckpointWriter {
 public:
  ~CheckpointWriter();
  CheckpointWriter(CheckpointWriter&&) noexcept;
  CheckpointWriter& operator=(CheckpointWriter&&) = delete;

  std::int64_t step() const { return step_; }
  // The folder that the files are written into. Other ranks may write theirs there too; their digests come in by
  // record() before the commit.
  const std::filesystem::path& folder() const { return folder_; }

  // Names are relative to the folder and may have subfolders. Each name once; `manifest.json` is taken.
  void add_text(const std::string& name, std::string_view content);
  void add_copy(const std::string& name, const std::filesystem::path& from);
  // A stream; hand what its close() returns, under the same name, to record().
  std::unique_ptr<HashingWriter> stream(const std::string& name);
  // Enters files that were written into folder(), synced, and digested by other means (a safetensors writer,
  // write_model_folder, another rank).
  void record(FileDigest file);
  void record(const std::vector<FileDigest>& files);

  // Syncs, writes the manifest, renames to checkpoint-N (replacing one that is there) and syncs the parent. Returns the
  // final folder.
  std::filesystem::path commit();

 private:
  friend class CheckpointStore;
  CheckpointWriter(std::filesystem::path parent, std::int64_t step);
  std::filesystem::path prepare(const std::string& name);
  void sync_folders() const;

  std::filesystem::path parent_, folder_;
  std::int64_t step_ = 0;
  std::vector<FileDigest> files_;
  int lock_ = -1;  // the folder, locked for as long as this process lives: tells it from a leftover
};

class CheckpointStore {
 public:
  explicit CheckpointStore(std::filesystem::path output_dir) : output_dir_(std::move(output_dir)) {}
  const std::filesystem::path& output_dir() const { return output_dir_; }

  // Starts a checkpoint. Leftovers of interrupted saves are removed first, with a note in the log. Throws a storage
  // error if the disk has less than `expected_bytes` free.
  CheckpointWriter begin(std::int64_t step, std::uint64_t expected_bytes = 0);

  // The checkpoints whose manifest is there and whose files all have their size, by step (no checksum is read).
  std::vector<CheckpointInfo> list() const;
  // Everything wrong with one checkpoint, checksums included; empty if it is whole.
  static std::vector<std::string> verify(const std::filesystem::path& folder);
  // The checkpoint of the highest step that verifies. Each damaged one above it is logged and appended to `damaged`.
  std::optional<CheckpointInfo> newest_whole(std::vector<DamagedCheckpoint>* damaged = nullptr);

  // Removes checkpoints until `save_total_limit` are left, the earliest saved first, as Hugging Face's Trainer does:
  // `best` (its step) stays, and so does the latest, even where the limit is 1. No limit if it is absent or below 1.
  // Only folders with a whole manifest count and are removed. Returns the folders removed.
  std::vector<std::filesystem::path> prune(std::optional<int> save_total_limit, std::optional<std::int64_t> best = {});

 private:
  void clean_leftovers();
  void restore_replaced();
  std::filesystem::path output_dir_;
};

// N of a folder named `checkpoint-N`.
std::optional<std::int64_t> checkpoint_step(const std::filesystem::path& folder);

}  // namespace convoy
