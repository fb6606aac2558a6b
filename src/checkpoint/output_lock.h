// One run at a time in an output folder.
#pragma once

#include <filesystem>

namespace convoy {

// Held by the first rank from before it looks at the folder until its last file is written. Two runs in one folder
// would mix their logs, take each other's checkpoints for their own and prune them. The kernel drops the lock whatever
// way the process ends; the file that a killed one leaves behind stops nobody.
class OutputLock {
 public:
  static constexpr const char* kFileName = ".convoy.lock";

  // Makes the folder where it is missing. Throws a usage error that names the other process while the lock is held, a
  // storage error where the folder cannot be written to. Warns on a file system without locks, and does without.
  explicit OutputLock(const std::filesystem::path& output_dir);
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  bool try_take(const std::filesystem::path& output_dir);
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace convoy
