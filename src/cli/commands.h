// The commands of `convoy`, one file each. A command gets the words after its name and returns the exit status; what
// goes wrong it throws.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace convoy {

using Words = std::vector<std::string>;

int train_command(const Words& words);
int launch_command(const Words& words);
int plan_command(const Words& words);
int plot_command(const Words& words);
int generate_command(const Words& words);
int tokenize_command(const Words& words);
int tokenizer_command(const Words& words);
int checkpoint_command(const Words& words);
int export_command(const Words& words);
int bench_command(const Words& words);
int config_command(const Words& words);

// Parses the words of a command made with CLI11. Returns false after printing help. Throws a usage error.
bool parse_words(CLI::App& app, const Words& words);

}  // namespace convoy
