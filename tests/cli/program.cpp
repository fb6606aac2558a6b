#include "program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/error.h"
#include "base/files.h"

namespace convoy::testing {
namespace {

pid_t start(const std::vector<std::string>& words, const std::filesystem::path& log,
            std::vector<std::string> environment = {}) {
  std::vector<std::string> all = {CONVOY_PROGRAM};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (std::string& word : all) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(out, STDERR_FILENO);
  for (std::string& variable : environment) ::putenv(variable.data());
  ::execv(CONVOY_PROGRAM, arguments.data());
  ::_exit(127);
}

int status_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Result run_convoy(const std::vector<std::string>& words) {
  const TempFolder folder;
  const std::filesystem::path log = folder.path() / "output";
  const int status = status_of(start(words, log));
  return {status, read_file(log)};
}

BackgroundRun::BackgroundRun(const std::vector<std::string>& words, std::filesystem::path log,
                             const std::vector<std::string>& environment)
    : child_(start(words, log, environment)), log_(std::move(log)) {}

BackgroundRun::~BackgroundRun() {
  if (child_ <= 0) return;
  ::kill(child_, SIGKILL);
  status_of(child_);
}

void BackgroundRun::signal(int number) const {
  if (child_ > 0) ::kill(child_, number);  // to -1 would be to every process there is
}

Result BackgroundRun::wait() {
  const int status = status_of(child_);
  child_ = -1;
  return {status, read_file(log_)};
}

TempFolder::TempFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "convoy-test-XXXXXX").string();
  check(::mkdtemp(pattern.data()) != nullptr, "cannot make a temporary folder");
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace convoy::testing
