#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <new>

#include "base/error.h"
#include "base/suggest.h"
#include "cli/commands.h"
#include "convoy_version.h"

namespace convoy {
namespace {

struct Command {
  const char* name;
  const char* help;
  int (*run)(const Words&);
};

constexpr Command kCommands[] = {
    {"train", "train or fine-tune a model", train_command},
    {"launch", "start a run on several processes or hosts", launch_command},
    {"plan", "say what memory a run takes, to the byte, before it runs", plan_command},
    {"bench", "measure what this machine does at best, for logs and plans", bench_command},
    {"generate", "continue a text with a model", generate_command},
    {"tokenize", "count or show the tokens of files", tokenize_command},
    {"tokenizer", "train a tokenizer", tokenizer_command},
    {"plot", "draw the log of a run as SVG", plot_command},
    {"checkpoint", "list and verify the checkpoints of a run", checkpoint_command},
    {"config", "answer accelerate's questions into a run file", config_command},
    {"export", "write a checkpoint as a plain Hugging Face folder", export_command},
};

std::string usage() {
  std::string text = "convoy trains transformer models.\n\nusage: convoy COMMAND [words]\n\n";
  for (const Command& command : kCommands) text += fmt::format("  {:<12} {}\n", command.name, command.help);
  return text + "\n  convoy COMMAND --help tells the words of a command; convoy --version the version\n";
}

std::string version() {
  return fmt::format("convoy {} (commit {}), devices: cpu\n", kVersion, kCommit);
}

int run(const Words& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    fmt::print("{}", usage());
    return static_cast<int>(words.empty() ? Status::kUsage : Status::kDone);
  }
  if (words[0] == "--version" || words[0] == "version") {
    fmt::print("{}", version());
    return 0;
  }
  for (const Command& command : kCommands) {
    if (words[0] == command.name) return command.run({words.begin() + 1, words.end()});
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  throw usage_error(fmt::format("no command '{}'{}", words[0], did_you_mean(words[0], names)))
      .mend("see: convoy --help");
}

}  // namespace

bool parse_words(CLI::App& app, const Words& words) {
  Words reversed(words.rbegin(), words.rend());
  const std::string name = app.get_name();
  app.name("convoy " + name);
  try {
    app.parse(reversed);
    return true;
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& failure) {
    throw usage_error(failure.what()).mend(fmt::format("see: convoy {} --help", name));
  }
}

}  // namespace convoy

int main(int argc, char** argv) {
  // A write beyond a file size limit then fails with an error that names the file, instead of ending the process.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return convoy::run(convoy::Words(argv + 1, argv + argc));
  } catch (const convoy::Error& error) {
    fmt::print(stderr, "convoy: {}\n", error.what());
    return static_cast<int>(error.status());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "convoy: out of memory; see what takes less with: convoy plan\n");
    return static_cast<int>(convoy::Status::kDoesNotFit);
  } catch (const std::filesystem::filesystem_error& failure) {
    fmt::print(stderr, "convoy: {}\n", failure.what());
    return static_cast<int>(convoy::Status::kStorage);
  } catch (const std::exception& failure) {
    fmt::print(stderr, "convoy: {}\n", failure.what());
    return static_cast<int>(convoy::Status::kInternal);
  }
}
