// One rank as a child process, and what it says.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace convoy {

class WorkerProcess {
 public:
  struct Start {
    std::string program;
    std::vector<std::string> words;
    std::vector<std::pair<std::string, std::string>> environment;  // added to this process's
    int rank = 0;
    std::string name;          // for messages; empty: "rank N"
    bool search_path = false;  // look the program up in PATH
    bool speaks = false;  // its stdout is ours
    bool plain = false;  // its lines on stderr pass through without a mark
    std::filesystem::path log;
    std::string input;  // for its stdin, which then stays open as long as this object lives; empty: ours
  };
  // Forks and executes. Throws a storage error where that fails.
  explicit WorkerProcess(const Start& start);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }
  // Descriptors to poll for input; -1 when closed.
  int out() const { return out_; }
  int err() const { return err_; }
  // Reads what is there and passes it on. Returns false at the end of that stream.
  bool read_out();
  bool read_err();
  // Passes on what is left after the process has ended.
  void drain();

  bool running() const { return running_; }
  void ended(int wait_status);
  int status() const { return status_; }  // exit status, or 128 + signal
  int signal() const { return signal_; }  // that killed it, or 0
  void kill(int number) const;
  // The last line that it wrote to stderr.
  const std::string& last_words() const { return last_words_; }

 private:
  void pass_on(const char* text, std::size_t length);
  void say(const std::string& line);

  int rank_;
  std::string name_;
  bool speaks_;
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1, in_ = -1;
  bool plain_ = false;
  std::FILE* log_ = nullptr;
  std::string pending_;  // an unfinished line of stderr
  std::string last_words_;
  bool running_ = true;
  int status_ = 0, signal_ = 0;
};

}  // namespace convoy
