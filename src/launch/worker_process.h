// A child process (a rank, or a host's launcher) and what it says.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/merged_output.h"

namespace convoy {

class WorkerProcess {
 public:
  struct Start {
    std::string program;                                           // looked up in PATH when it has no slash
    std::vector<std::string> words;                                // after the program's name
    std::vector<std::pair<std::string, std::string>> environment;  // added to this process's
    std::string name;                                              // in messages: "rank 2"
    std::string prefix;                                            // of its lines: "[rank 2] "
    bool speaks = false;        // its output passes through as it is; else only whole lines of stderr are shown
    std::filesystem::path log;  // receives all that it says; empty: none
    bool controlled = false;    // signals go as lines through its stdin, because it runs elsewhere
    std::string first_input;    // what a controlled process reads first
  };
  // Forks and executes. The child dies with the calling thread. Throws a storage error where that fails.
  WorkerProcess(const Start& start, MergedOutput& screen);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  const std::string& name() const { return name_; }
  bool controlled() const { return controlled_; }
  // Descriptors to poll for input; -1 when closed.
  int out() const { return out_; }
  int err() const { return err_; }
  // To poll for room: -1 when there is nothing to write.
  int in() const { return to_send_.empty() ? -1 : in_; }
  void write_in();
  // Read what is there and pass it on.
  void read_out();
  void read_err();

  bool running() const { return running_; }
  // Takes note of its end, if it has ended: ends what it left behind and passes on what it still had to say.
  bool collect();
  int status() const { return status_; }  // exit status, or 128 + signal
  int signal() const { return signal_; }  // that killed it, or 0
  // Passes a signal on.
  void send_signal(int number);
  // Asks it to end because another one failed.
  void ask_to_end();
  // The last message that it wrote to stderr: from the last line that begins with "convoy: ", else the last line.
  const std::string& last_words() const { return last_words_; }

 private:
  void say(const std::string& line);
  void send_line(const std::string& text);

  std::string name_, prefix_;
  bool speaks_, controlled_;
  MergedOutput& screen_;
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  std::FILE* log_ = nullptr;
  std::string to_send_;  // through its stdin, as soon as there is room
  std::string pending_;  // an unfinished line of stderr
  std::string last_words_;
  int lines_of_message_ = 0;  // since a line that begins with "convoy: "; 0: there was none
  bool running_ = true;
  int status_ = 0, signal_ = 0;
};

}  // namespace convoy
