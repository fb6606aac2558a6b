// Runs the built program as a user would.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace convoy::testing {

struct Result {
  int status = 0;      // exit status, or 128 + signal
  std::string output;  // stdout and stderr together
};

Result run_convoy(const std::vector<std::string>& words);

// A run that goes on in the background.
class BackgroundRun {
 public:
  // `environment`: NAME=value, beside this process's own.
  BackgroundRun(const std::vector<std::string>& words, std::filesystem::path log,
                const std::vector<std::string>& environment = {});
  ~BackgroundRun();
  BackgroundRun(const BackgroundRun&) = delete;
  BackgroundRun& operator=(const BackgroundRun&) = delete;
  void signal(int number) const;
  Result wait();

 private:
  pid_t child_ = -1;
  std::filesystem::path log_;
};

// A folder of its own, removed with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace convoy::testing
