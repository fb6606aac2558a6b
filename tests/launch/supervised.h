// Runs code that looks after processes in a process of its own, with its output in files.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>

namespace convoy::testing {

class Supervised {
 public:
  // `body` returns the exit status; a convoy::Error becomes "convoy: …" on stderr and its status.
  explicit Supervised(const std::function<int()>& body);
  ~Supervised();
  Supervised(const Supervised&) = delete;
  Supervised& operator=(const Supervised&) = delete;

  void signal(int number) const;
  // Its exit status, or 128 + signal.
  int wait();
  std::string out() const;
  std::string err() const;
  // Waits until stderr holds `text`; false after ten seconds.
  bool says(const std::string& text) const;
  const std::filesystem::path& folder() const { return folder_; }
  // Whether the process whose number that file holds still runs, after giving it five seconds to end.
  bool outlives(const std::string& file) const;

 private:
  std::filesystem::path folder_;
  pid_t child_ = -1;
};

// A folder whose name Supervised::folder() will be; bodies may mention it before it runs.
std::filesystem::path next_folder();

}  // namespace convoy::testing
