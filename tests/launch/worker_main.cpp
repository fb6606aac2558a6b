// A rank for tests: does what its words say, one after another. A word is "[@RANK ][#RESTART ]ACTION[=VALUE]"; words
// for another rank or restart are passed over.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void write_all(int fd, const std::string& text) {
  if (::write(fd, text.data(), text.size()) < 0) std::_Exit(99);
}

void sleep_for(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

volatile sig_atomic_t received = 0;

void act(const std::string& action, const std::string& value, const std::string& rank) {
  const int number = std::atoi(value.c_str());
  if (action == "exit") std::_Exit(number);
  if (action == "signal") {
    ::signal(number, SIG_DFL);  // sanitizers have handlers of their own
    ::raise(number);
  }
  if (action == "say") write_all(STDERR_FILENO, value + "\n");
  if (action == "raw") write_all(STDERR_FILENO, value);
  if (action == "out") write_all(STDOUT_FILENO, value + "\n");
  if (action == "sleep") sleep_for(number);
  if (action == "env") write_all(STDERR_FILENO, value + "=" + variable(value.c_str()) + "\n");
  // Lines in two pieces each, so that a careless reader tears them.
  for (int i = 0; action == "lines" && i < number; ++i) {
    write_all(STDERR_FILENO, "<line " + std::to_string(i));
    sleep_for(1);
    write_all(STDERR_FILENO, " of " + rank + ">\n");
  }
  if (action == "pid") std::ofstream(value + "/" + rank) << ::getpid() << "\n";
  while (action == "await" && !std::ifstream(value)) sleep_for(2);
  if (action == "hang") {
    for (const int ignored : {SIGTERM, SIGINT}) ::signal(ignored, SIG_IGN);
    while (true) sleep_for(1000);
  }
  // Ends with 128 + the signal that comes, `value` milliseconds after it.
  if (action == "wait") {
    while (received == 0) sleep_for(5);
    sleep_for(number);
    write_all(STDERR_FILENO, "got signal " + std::to_string(received) + "\n");
    std::_Exit(128 + received);
  }
  // Leaves a process behind.
  if (action == "child" && ::fork() == 0) {
    std::ofstream(value + "/child") << ::getpid() << "\n";
    ::execlp("sleep", "sleep", "1000", nullptr);
  }
  if (action == "stdin") {
    char byte = 0;
    write_all(STDERR_FILENO, ::read(STDIN_FILENO, &byte, 1) == 0 ? "stdin is empty\n" : "stdin has something\n");
  }
}

}  // namespace

int main(int count, char** words) {
  for (const int number : {SIGTERM, SIGINT}) ::signal(number, [](int got) { received = got; });
  const std::string rank = variable("CONVOY_RANK");
  const std::string restart = variable("CONVOY_RESTART_COUNT");
  for (int i = 1; i < count; ++i) {
    std::string word = words[i];
    bool mine = true;
    while (word[0] == '@' || word[0] == '#') {
      const std::size_t space = word.find(' ');
      mine = mine && word.substr(1, space - 1) == (word[0] == '@' ? rank : restart);
      word.erase(0, space + 1);
    }
    const std::size_t equals = word.find('=');
    if (mine) act(word.substr(0, equals), equals == std::string::npos ? "" : word.substr(equals + 1), rank);
  }
  return 0;
}
