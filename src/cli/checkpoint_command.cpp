// convoy checkpoint list|verify RUN_FOLDER
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "checkpoint/checkpoint_store.h"
#include "checkpoint/train_state.h"
#include "cli/commands.h"

namespace convoy {
namespace {

int list(const std::string& folder) {
  const CheckpointStore store(folder);
  for (const CheckpointInfo& info : store.list()) {
    const TrainingState state = read_training_state(info.folder);
    fmt::print("{}  step {}  epoch {}  samples {}\n", info.folder.string(), state.step, state.data.epoch,
               state.data.samples_seen);
  }
  return 0;
}

int verify(const std::string& folder) {
  std::vector<std::filesystem::path> folders;
  if (checkpoint_step(folder)) {
    folders.emplace_back(folder);
  } else {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.is_directory() && checkpoint_step(entry.path())) folders.push_back(entry.path());
    }
  }
  std::sort(folders.begin(), folders.end(),
            [](const auto& a, const auto& b) { return checkpoint_step(a) < checkpoint_step(b); });
  bool whole = true;
  for (const std::filesystem::path& each : folders) {
    const std::vector<std::string> problems = CheckpointStore::verify(each);
    fmt::print("{}: {}\n", each.string(), problems.empty() ? "whole" : "damaged");
    for (const std::string& problem : problems) fmt::print("  {}\n", problem);
    whole = whole && problems.empty();
  }
  if (folders.empty()) throw usage_error(fmt::format("no checkpoints in {}", folder));
  return static_cast<int>(whole ? Status::kDone : Status::kStorage);
}

}  // namespace

int checkpoint_command(const Words& words) {
  std::string folder;
  CLI::App app("list and verify checkpoints", "checkpoint");
  auto* list_app = app.add_subcommand("list", "the checkpoints of a run, by step");
  auto* verify_app = app.add_subcommand("verify", "check every file's size and checksum");
  for (auto* each : {list_app, verify_app})
    each->add_option("folder", folder, "the run's output_dir, or one checkpoint")
        ->required()
        ->check(CLI::ExistingDirectory);
  app.require_subcommand(1);
  if (!parse_words(app, words)) return 0;
  return list_app->parsed() ? list(folder) : verify(folder);
}

}  // namespace convoy
