#include "launch/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace convoy {
namespace {

// Lines after "convoy: …" that still belong to the message.
constexpr int kMostLinesOfMessage = 8;
constexpr std::size_t kLongestLine = 1 << 16;

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(other.take()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int take() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

struct Pipe {
  Descriptor read, write;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw storage_error(fmt::format("cannot make a pipe: {}", std::strerror(errno))).mend("see: ulimit -n");
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// What execve takes, made before the fork: the child may only call what is safe there.
struct Arguments {
  std::vector<std::string> texts;
  std::vector<char*> pointers;
  explicit Arguments(std::vector<std::string> all) : texts(std::move(all)) {
    for (std::string& text : texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);
  }
};

std::vector<std::string> merged_environment(const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    bool replaced = false;
    for (const auto& [key, value] : added) replaced = replaced || key == name;
    if (!replaced) all.push_back(text);
  }
  for (const auto& [key, value] : added) all.push_back(key + "=" + value);
  return all;
}

// What the child's standard descriptors become; -1: as they are.
struct Standard {
  int in = -1, out = -1, err = -1;
};

[[noreturn]] void become(const Arguments& words, const Arguments& environment, const Standard& standard, int report,
                         pid_t parent) {
  ::setpgid(0, 0);  // signals of the terminal go to the supervisor alone, which passes them on
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(143);  // the supervisor died between fork and prctl
  ::signal(SIGTTOU, SIG_IGN);               // a background group may write to a terminal set to `tostop`
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (standard.in >= 0) ::dup2(standard.in, STDIN_FILENO);
  if (standard.out >= 0) ::dup2(standard.out, STDOUT_FILENO);
  if (standard.err >= 0) ::dup2(standard.err, STDERR_FILENO);
  ::execvpe(words.pointers[0], words.pointers.data(), environment.pointers.data());
  const int code = errno;
  [[maybe_unused]] const ssize_t ignored = ::write(report, &code, sizeof(code));
  ::_exit(127);
}

}  // namespace

WorkerProcess::WorkerProcess(const Start& start, MergedOutput& screen)
    : name_(start.name), prefix_(start.prefix), speaks_(start.speaks), controlled_(start.controlled), screen_(screen) {
  std::vector<std::string> all = {start.program};
  all.insert(all.end(), start.words.begin(), start.words.end());
  const Arguments words(std::move(all));
  const Arguments environment(merged_environment(start.environment));
  Pipe in;
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Pipe report = make_pipe();
  if (controlled_) {
    in = make_pipe();
  } else {
    // The terminal would stop a background group that reads from it.
    in.read = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  // A terminal, or a file, gets a leading process's stdout directly: it asks whether that is a terminal.
  const bool inherits = speaks_ && start.log.empty();
  const Standard standard{in.read.get(), inherits ? -1 : out.write.get(), err.write.get()};
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) become(words, environment, standard, report.write.get(), parent);
  if (pid_ < 0) throw storage_error(fmt::format("cannot start {}: {}", name_, std::strerror(errno)));
  ::setpgid(pid_, pid_);  // here too: a signal may have to be passed on before the child comes to it
  ::close(report.write.take());
  int code = 0;
  ssize_t got = 0;
  while ((got = ::read(report.read.get(), &code, sizeof(code))) < 0 && errno == EINTR) {
  }
  if (got == sizeof(code)) {
    ::waitpid(pid_, nullptr, 0);
    throw storage_error(fmt::format("cannot start {}: {}: {}", name_, start.program, std::strerror(code)));
  }
  if (!start.log.empty()) log_ = std::fopen(start.log.c_str(), "ae");
  if (!start.log.empty() && log_ == nullptr) {
    const int failure = errno;
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    throw storage_error(fmt::format("cannot write: {}", std::strerror(failure))).at(start.log.string());
  }
  in_ = in.write.take();
  if (!inherits) out_ = out.read.take();
  err_ = err.read.take();
  for (const int fd : {in_, out_, err_}) {
    if (fd >= 0) ::fcntl(fd, F_SETFL, O_NONBLOCK);
  }
  if (controlled_) send_line(start.first_input);
}

WorkerProcess::~WorkerProcess() {
  if (running_ && pid_ > 0) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const int fd : {in_, out_, err_}) {
    if (fd >= 0) ::close(fd);
  }
  if (log_ != nullptr) std::fclose(log_);
}

void WorkerProcess::send_line(const std::string& text) {
  to_send_ += text;
  write_in();
}

void WorkerProcess::write_in() {
  while (in_ >= 0 && !to_send_.empty()) {
    const ssize_t n = ::write(in_, to_send_.data(), to_send_.size());
    if (n > 0) {
      to_send_.erase(0, static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      return;  // poll says when there is room
    } else if (errno != EINTR) {
      ::close(std::exchange(in_, -1));  // it reads no more; its end will be noticed
    }
  }
}

void WorkerProcess::send_signal(int number) {
  if (!running_) return;
  if (controlled_ && number != SIGKILL) {
    send_line(fmt::format("signal {}\n", number));
    return;
  }
  // The end of its stdin tells a process elsewhere to end.
  if (in_ >= 0) ::close(std::exchange(in_, -1));
  ::kill(-pid_, number);
}

void WorkerProcess::ask_to_end() {
  if (!running_) return;
  if (controlled_) {
    send_line("end\n");
  } else {
    ::kill(-pid_, SIGTERM);
  }
}

void WorkerProcess::say(const std::string& line) {
  if (line.starts_with("convoy: ")) {
    last_words_ = line.substr(8);
    lines_of_message_ = 1;
  } else if (lines_of_message_ > 0 && line.starts_with(" ")) {
    if (lines_of_message_ < kMostLinesOfMessage) last_words_ += "\n" + line;
    ++lines_of_message_;
  } else if (line.find_first_not_of(" \t\r") != std::string::npos) {
    last_words_ = line;
    lines_of_message_ = 0;
  }
  if (!speaks_) screen_.line(prefix_ + line);
}

void WorkerProcess::read_err() {
  std::array<char, 8192> buffer;
  while (true) {
    const ssize_t got = ::read(err_, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) break;
    const std::string_view text(buffer.data(), static_cast<std::size_t>(got));
    if (log_ != nullptr) std::fwrite(text.data(), 1, text.size(), log_);
    if (speaks_) screen_.pass(text);
    pending_ += text;
    std::size_t begin = 0;
    for (std::size_t end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n', begin)) {
      say(pending_.substr(begin, end - begin));
      begin = end + 1;
    }
    pending_.erase(0, begin);
    if (pending_.size() > kLongestLine) say(std::exchange(pending_, {}));
  }
  ::close(std::exchange(err_, -1));
}

void WorkerProcess::read_out() {
  std::array<char, 8192> buffer;
  while (true) {
    const ssize_t got = ::read(out_, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) break;
    if (log_ != nullptr) std::fwrite(buffer.data(), 1, static_cast<std::size_t>(got), log_);
    if (speaks_) {
      std::fwrite(buffer.data(), 1, static_cast<std::size_t>(got), stdout);
      std::fflush(stdout);
    }
  }
  ::close(std::exchange(out_, -1));
}

bool WorkerProcess::collect() {
  siginfo_t info{};
  if (!running_ || ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != pid_) {
    return false;
  }
  // While it is a zombie the number of its group is nobody else's.
  ::kill(-pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  running_ = false;
  signal_ = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  status_ = signal_ != 0 ? 128 + signal_ : WEXITSTATUS(status);
  if (err_ >= 0) read_err();
  if (out_ >= 0) read_out();
  if (!pending_.empty()) say(std::exchange(pending_, {}));
  if (speaks_) screen_.flush();
  if (log_ != nullptr) std::fflush(log_);
  return true;
}

}  // namespace convoy
