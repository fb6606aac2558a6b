#include "launch/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace convoy {
namespace {

struct Pipe {
  int read = -1, write = -1;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw storage_error(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {ends[0], ends[1]};
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

[[noreturn]] void become(const Arguments& words, const Arguments& environment, const Pipe& out, const Pipe& err,
                         int input, bool speaks, bool search_path, pid_t parent) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  ::setpgid(0, 0);  // signals of the terminal go to the supervisor alone, which passes them on
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(143);  // the supervisor died between fork and prctl
  if (input >= 0) ::dup2(input, STDIN_FILENO);
  if (!speaks) ::dup2(out.write, STDOUT_FILENO);
  ::dup2(err.write, STDERR_FILENO);
  if (search_path) {
    ::execvpe(words.pointers[0], words.pointers.data(), environment.pointers.data());
  } else {
    ::execve(words.pointers[0], words.pointers.data(), environment.pointers.data());
  }
  constexpr char kFailed[] = "convoy: a worker cannot be executed\n";
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, kFailed, sizeof(kFailed) - 1);
  ::_exit(127);
}

}  // namespace

WorkerProcess::WorkerProcess(const Start& start)
    : rank_(start.rank),
      name_(start.name.empty() ? fmt::format("rank {}", start.rank) : start.name),
      speaks_(start.speaks), plain_(start.plain) {
  std::vector<std::string> all = {start.program};
  all.insert(all.end(), start.words.begin(), start.words.end());
  const Arguments words(std::move(all));
  const Arguments environment(merged_environment(start.environment));
  if (!start.log.empty()) {
    log_ = std::fopen(start.log.c_str(), "ae");
    if (log_ == nullptr) throw storage_error(std::strerror(errno)).at(start.log.string());
  }
  const Pipe out = make_pipe();
  const Pipe err = make_pipe();
  Pipe in;
  if (!start.input.empty()) {
    in = make_pipe();
    ::fcntl(in.read, F_SETFL, 0);
    [[maybe_unused]] const ssize_t wrote = ::write(in.write, start.input.data(), start.input.size());
    in_ = in.write;
  }
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) become(words, environment, out, err, in.read, speaks_, start.search_path, parent);
  ::close(out.write);
  ::close(err.write);
  if (in.read >= 0) ::close(in.read);
  out_ = out.read;
  err_ = err.read;
  if (pid_ < 0) throw storage_error(fmt::format("cannot start {}: {}", name_, std::strerror(errno)));
}

WorkerProcess::~WorkerProcess() {
  if (running_ && pid_ > 0) {
    kill(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) ::close(out_);
  if (err_ >= 0) ::close(err_);
  if (in_ >= 0) ::close(in_);
  if (log_ != nullptr) std::fclose(log_);
}

void WorkerProcess::kill(int number) const {
  if (running_) ::kill(-pid_, number) != 0 ? ::kill(pid_, number) : 0;
}

void WorkerProcess::say(const std::string& line) {
  if (!line.empty()) last_words_ = line;
  if (!speaks_ && !plain_) fmt::print(stderr, "[rank {}] {}\n", rank_, line);
  if (!speaks_ && plain_) fmt::print(stderr, "{}\n", line);
}

void WorkerProcess::pass_on(const char* text, std::size_t length) {
  if (log_ != nullptr) std::fwrite(text, 1, length, log_);
  if (speaks_) std::fwrite(text, 1, length, stderr);  // as it comes: it may redraw a line
  pending_.append(text, length);
  std::size_t begin = 0;
  for (std::size_t end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n', begin)) {
    say(pending_.substr(begin, end - begin));
    begin = end + 1;
  }
  pending_.erase(0, begin);
}

bool WorkerProcess::read_err() {
  std::array<char, 8192> buffer;
  while (true) {
    const ssize_t got = ::read(err_, buffer.data(), buffer.size());
    if (got > 0) {
      pass_on(buffer.data(), static_cast<std::size_t>(got));
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    ::close(err_);
    err_ = -1;
    return false;
  }
}

bool WorkerProcess::read_out() {
  std::array<char, 8192> buffer;
  while (true) {
    const ssize_t got = ::read(out_, buffer.data(), buffer.size());
    if (got > 0) {
      if (log_ != nullptr) std::fwrite(buffer.data(), 1, static_cast<std::size_t>(got), log_);
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    ::close(out_);
    out_ = -1;
    return false;
  }
}

void WorkerProcess::drain() {
  if (err_ >= 0) read_err();
  if (out_ >= 0) read_out();
  if (!pending_.empty()) say(std::exchange(pending_, {}));
  if (log_ != nullptr) std::fflush(log_);
}

void WorkerProcess::ended(int wait_status) {
  running_ = false;
  signal_ = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
  status_ = signal_ != 0 ? 128 + signal_ : WEXITSTATUS(wait_status);
  drain();
}

}  // namespace convoy
