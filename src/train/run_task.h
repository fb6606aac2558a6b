// What a task changes about a run's model: its head, the tokens that it adds to the vocabulary, the names of its
// classes.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "data/encode.h"
#include "data/source.h"
#include "models/model.h"

namespace convoy {

// finetune-transformer-lm's tokens around a story and an ending.
inline constexpr const char* kStartToken = "_start_";
inline constexpr const char* kDelimiterToken = "_delimiter_";
inline constexpr const char* kClassifyToken = "_classify_";

struct TaskSetup {
  TaskEncoding encoding;  // without the length, which the model's shape gives
  // Tokens that the tokenizer lacks, with the ids that they get behind its own.
  std::vector<std::pair<std::string, TokenId>> added_tokens;
};

// Sets the options of the model's head, and in config.json what Hugging Face needs to read the result: architectures,
// vocab_size, id2label. Reads the tokenizer (multiple_choice) or the labels of the training files (classification,
// where neither class_names nor the configuration name the classes). Throws usage errors.
TaskSetup set_up_task(const RunConfig& config, Json& model_config, const std::string& where, ModelOptions& options);

// The tokenizer's files with the added tokens, in `to`, as a folder to carry along with the model.
void write_extended_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to,
                              const std::vector<std::pair<std::string, TokenId>>& added);

// The files of train_files, validation_files or test_files and how they are read.
SourceOptions source_options(const RunConfig& config, const std::string& key);

}  // namespace convoy
