// A run that is over in a moment: a tiny GPT-2 on a few sentences.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "program.h"

namespace convoy::testing {

inline std::string golden(const std::string& name) {
  return std::string(CONVOY_TEST_DATA) + "/" + name;
}

// Sentences that a tiny model can learn a little of.
inline void write_text(const std::string& path, int lines) {
  const char* subjects[] = {"The cat", "A dog", "My friend", "The old man", "Nobody", "The river"};
  const char* verbs[] = {"sees", "likes", "hears", "follows", "forgets"};
  const char* objects[] = {"the moon.", "a red house.", "the music.", "an open door.", "the long road."};
  std::mt19937 random(3);
  std::ofstream out(path);
  for (int i = 0; i < lines; ++i) {
    out << R"({"text": ")" << subjects[random() % 6] << " " << verbs[random() % 5] << " " << objects[random() % 5]
        << "\"}\n";
  }
}

class TinyRun : public ::testing::Test {
 protected:
  TinyRun() { write_text(data(), 400); }

  std::string data() const { return folder_ / "data.jsonl"; }
  // A tiny GPT-2 with dropout, which depends on the random numbers too.
  std::string model_config() const {
    return R"({"model_type": "gpt2", "vocab_size": 2200, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64})";
  }
  std::vector<std::string> words(const std::string& output, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"train",
                                    "--from_scratch",
                                    "--model_config",
                                    model_config(),
                                    "--tokenizer",
                                    golden("tokenizers/gpt2"),
                                    "--train_files",
                                    data(),
                                    "--seq_length",
                                    "32",
                                    "--per_device_train_batch_size",
                                    "4",
                                    "--gradient_accumulation_steps",
                                    "2",
                                    "--max_steps",
                                    "12",
                                    "--learning_rate",
                                    "3e-3",
                                    "--logging_steps",
                                    "1",
                                    "--save_steps",
                                    "6",
                                    "--output_dir",
                                    output,
                                    "--cache_dir",
                                    folder_ / "cache",
                                    "--threads",
                                    "2"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  TempFolder folder_;
};

}  // namespace convoy::testing
