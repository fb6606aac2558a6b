#include "supervised.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/files.h"

namespace convoy::testing {
namespace {

int folders_made = 0;

// Calls `done` until it holds or the time is over.
bool in_time(std::chrono::seconds time, const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool runs(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/stat", pid));
  std::string number, name, state;
  return status >> number >> name >> state && state != "Z";
}

}  // namespace

std::filesystem::path next_folder() {
  return std::filesystem::temp_directory_path() / fmt::format("convoy-launch-{}-{}", ::getpid(), folders_made);
}

Supervised::Supervised(const std::function<int()>& body) : folder_(next_folder()) {
  ++folders_made;
  std::filesystem::create_directories(folder_);
  child_ = ::fork();
  if (child_ != 0) return;
  ::alarm(60);  // never outlive a test that failed
  ::dup2(::open((folder_ / "out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644), STDOUT_FILENO);
  ::dup2(::open((folder_ / "err").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644), STDERR_FILENO);
  int status = 1;
  try {
    status = body();
  } catch (const Error& error) {
    fmt::print(stderr, "convoy: {}\n", error.what());
    status = static_cast<int>(error.status());
  }
  ::_exit(status);
}

Supervised::~Supervised() {
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void Supervised::signal(int number) const {
  ::kill(child_, number);
}

int Supervised::wait() {
  int status = 0;
  ::waitpid(child_, &status, 0);
  child_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string Supervised::out() const {
  return read_file(folder_ / "out");
}
std::string Supervised::err() const {
  return read_file(folder_ / "err");
}

bool Supervised::says(const std::string& text) const {
  return in_time(std::chrono::seconds(10),
                 [&] { return std::filesystem::exists(folder_ / "err") && err().find(text) != std::string::npos; });
}

bool Supervised::outlives(const std::string& file) const {
  pid_t pid = 0;
  std::ifstream(folder_ / file) >> pid;
  check(pid > 0, "the test's process has not written its number");
  return !in_time(std::chrono::seconds(5), [&] { return !runs(pid); });
}

}  // namespace convoy::testing
