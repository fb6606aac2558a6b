// Whole runs of the program: results, resumption, signals, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/files.h"
#include "base/json.h"
#include "checkpoint/checkpoint_store.h"
#include "checkpoint/safetensors.h"
#include "program.h"
#include "tiny_run.h"

namespace convoy {
namespace {

using testing::BackgroundRun;
using ::testing::HasSubstr;
using testing::Result;
using testing::run_convoy;
using testing::TempFolder;

using testing::golden;

class Cli : public testing::TinyRun {};

TEST_F(Cli, VersionHelpAndWrongCommands) {
  EXPECT_THAT(run_convoy({"--version"}).output, HasSubstr("devices: cpu"));
  EXPECT_EQ(run_convoy({"--help"}).status, 0);
  EXPECT_EQ(run_convoy({}).status, 2);
  const Result wrong = run_convoy({"trian"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.output, HasSubstr("did you mean 'train'?"));
  for (const char* command : {"train", "plan", "bench", "generate", "transcribe", "evaluate", "tokenize", "tokenizer",
                              "plot", "checkpoint", "export", "config", "launch"}) {
    EXPECT_EQ(run_convoy({command, "--help"}).status, 0) << command;
  }
}

TEST_F(Cli, TrainsSavesAndGenerates) {
  const Result run = run_convoy(
      words(folder_ / "run", {"--validation_split", "0.1", "--eval_strategy", "steps", "--eval_steps", "6",
                              "--max_steps", "30", "--plot", folder_ / "loss.svg", "--report_to", "tensorboard"}));
  ASSERT_EQ(run.status, 0) << run.output;
  const SafetensorsFile weights(folder_ / "run/model.safetensors");
  EXPECT_TRUE(weights.contains("transformer.wte.weight"));
  EXPECT_FALSE(weights.contains("lm_head.weight")) << "tied weights are stored once";
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/tokenizer.json"));
  EXPECT_THAT(read_file(folder_ / "loss.svg"), HasSubstr("</svg>"));
  EXPECT_TRUE(std::filesystem::is_directory(folder_ / "run/runs"));
  const Json state = read_json(folder_ / "run/trainer_state.json");
  EXPECT_EQ(state["global_step"], 30);
  double first = 0, last = 0;
  for (const Json& entry : state["log_history"]) {
    if (!entry.contains("loss")) continue;
    last = entry["loss"];
    if (first == 0) first = last;
  }
  EXPECT_LT(last, first - 1) << "the loss falls";
  const std::vector<std::string> generate = {"generate", folder_ / "run", "--prompt", "The cat", "--max_new_tokens",
                                             "8",        "--greedy"};
  const Result once = run_convoy(generate);
  EXPECT_EQ(once.status, 0) << once.output;
  EXPECT_THAT(once.output, HasSubstr("The cat"));
  EXPECT_EQ(once.output, run_convoy(generate).output);
}

TEST_F(Cli, AResumedRunGivesTheSameBits) {
  for (const std::string dtype : {"f32", "bf16"}) {
    const std::string whole = folder_ / ("whole-" + dtype);
    const std::string again = folder_ / ("again-" + dtype);
    ASSERT_EQ(run_convoy(words(whole, {"--dtype", dtype})).status, 0);
    std::filesystem::create_directories(again);
    std::filesystem::copy(whole + "/checkpoint-6", again + "/checkpoint-6", std::filesystem::copy_options::recursive);
    const Result resumed =
        run_convoy(words(again, {"--dtype", dtype, "--resume_from_checkpoint", "true", "--threads", "1"}));
    ASSERT_EQ(resumed.status, 0) << resumed.output;
    for (const char* file :
         {"model.safetensors", "checkpoint-12/model.safetensors", "checkpoint-12/optimizer.safetensors"}) {
      EXPECT_TRUE(read_file(whole + "/" + file) == read_file(again + "/" + file)) << dtype << " " << file;
    }
  }
}

TEST_F(Cli, TheCutOfTheBatchKeepsTheData) {
  ASSERT_EQ(run_convoy(words(folder_ / "a")).status, 0);
  ASSERT_EQ(
      run_convoy(words(folder_ / "b", {"--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "4"}))
          .status,
      0);
  const Json a = read_json(folder_ / "a/trainer_state.json");
  const Json b = read_json(folder_ / "b/trainer_state.json");
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_NEAR(a["log_history"][i]["loss"].get<double>(), b["log_history"][i]["loss"].get<double>(), 2e-4) << i;
  }
}

TEST_F(Cli, ASignalSavesAndEndsWithItsStatus) {
  for (const auto& [number, status] : {std::pair{SIGTERM, 143}, std::pair{SIGINT, 130}}) {
    const std::string output = folder_ / ("signal-" + std::to_string(number));
    BackgroundRun run(words(output, {"--max_steps", "1000000", "--save_steps", "500000"}), folder_ / "log");
    for (int i = 0; i < 600; ++i) {  // until it trains
      if (std::filesystem::exists(output + "/log.jsonl") &&
          read_file(output + "/log.jsonl").find("\"step\":2") != std::string::npos)
        break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    run.signal(number);
    const Result result = run.wait();
    EXPECT_EQ(result.status, status) << result.output;
    CheckpointStore store(output);
    const auto newest = store.newest_whole();
    ASSERT_TRUE(newest) << result.output;
    const Result next = run_convoy(
        words(output, {"--max_steps", std::to_string(newest->step + 2), "--resume_from_checkpoint", "true"}));
    EXPECT_EQ(next.status, 0) << next.output;
  }
}

TEST_F(Cli, AResumedRunWithOtherSettingsIsRefused) {
  const std::string output = folder_ / "run";
  ASSERT_EQ(run_convoy(words(output, {"--max_steps", "6"})).status, 0);
  const auto expect = [&](const std::vector<std::string>& more, int status, const std::string& text) {
    std::vector<std::string> all = {"--resume_from_checkpoint", "true"};
    all.insert(all.end(), more.begin(), more.end());
    const Result result = run_convoy(words(output, all));
    EXPECT_EQ(result.status, status) << result.output;
    EXPECT_THAT(result.output, HasSubstr(text));
  };
  expect({"--per_device_train_batch_size", "8"}, 2, "rows per step");
  expect({"--seed", "7"}, 2, "seed");
  expect({"--seq_length", "16"}, 2, "other data");
  expect({"--optim", "sgd"}, 3, "optimizer");
  expect({"--bf16"}, 3, "master.");
  expect({}, 0, "resumed from");
}

TEST_F(Cli, ADamagedCheckpointIsReportedAndTheOneBeforeUsed) {
  const std::string output = folder_ / "run";
  ASSERT_EQ(run_convoy(words(output)).status, 0);
  {
    std::fstream file(output + "/checkpoint-12/optimizer.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000);
    file.put('x');
    file.put('y');
  }
  const Result verify = run_convoy({"checkpoint", "verify", output});
  EXPECT_EQ(verify.status, 6);
  EXPECT_THAT(verify.output, HasSubstr("checkpoint-12: damaged"));
  EXPECT_THAT(verify.output, HasSubstr("checkpoint-6: whole"));
  const Result resumed = run_convoy(words(output, {"--resume_from_checkpoint", "true"}));
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("optimizer.safetensors"));
  EXPECT_THAT(resumed.output, HasSubstr("at step 6"));
}

TEST_F(Cli, ARunThatDoesNotFitIsRefusedWithSettingsThatDo) {
  const Result plan = run_convoy({"plan", "--from_scratch", "--model_config", model_config(), "--seq_length", "64"});
  EXPECT_EQ(plan.status, 0) << plan.output;
  EXPECT_THAT(plan.output, HasSubstr("total"));
  const Result refused = run_convoy(words(folder_ / "run", {"--memory_limit", "3MiB", "--save_strategy", "no"}));
  EXPECT_EQ(refused.status, 4) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("these settings fit:"));
  EXPECT_THAT(refused.output, HasSubstr("--per_device_train_batch_size 1"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/log.jsonl")) << "refused before anything is written";
}

// cpu_checkpointing recomputes blocks; where the device's memory is the host's, their inputs are there anyway.
TEST_F(Cli, DeepSpeedsCheckpointingInHostMemory) {
  const std::string ds = folder_ / "ds.json";
  std::ofstream(ds) << R"({"activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": true}})";
  const Result plan =
      run_convoy({"plan", "--from_scratch", "--model_config", model_config(), "--seq_length", "64", "--deepspeed", ds});
  EXPECT_EQ(plan.status, 0) << plan.output;
  EXPECT_THAT(plan.output, HasSubstr("recompute full"));
  EXPECT_THAT(plan.output, HasSubstr("no effect: `offload_activations`"));
  EXPECT_THAT(plan.output, HasSubstr("the CPU device keeps them in host memory anyway"));
  const auto last_loss = [&](const std::string& name, const std::vector<std::string>& more) {
    const std::string output = folder_ / name;
    std::vector<std::string> all = {"--max_steps", "3", "--save_strategy", "no"};
    all.insert(all.end(), more.begin(), more.end());
    const Result run = run_convoy(words(output, all));
    EXPECT_EQ(run.status, 0) << run.output;
    return read_json(output + "/trainer_state.json")["log_history"][2]["loss"].get<double>();
  };
  EXPECT_EQ(last_loss("kept", {}), last_loss("offloaded", {"--deepspeed", ds}));
  const Result nvme = run_convoy(words(folder_ / "nvme", {"--offload_activations", "nvme"}));
  EXPECT_EQ(nvme.status, 2);
  EXPECT_THAT(nvme.output, HasSubstr("'nvme' is not supported"));
}

TEST_F(Cli, LogsSayHowMuchOfTheCeilingIsReached) {
  const std::string ceilings = folder_ / "ceilings.json";
  const std::string least = R"({"version": 1, "card": "x", "date": "2026-01-31", "dtype": "f32", )";
  std::ofstream(ceilings) << least << R"("matrix_product_tflops": 2})";
  const Result run = run_convoy(words(folder_ / "run", {"--max_steps", "2", "--ceilings_file", ceilings}));
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("% of the ceiling)"));
  const Json entry = read_json(folder_ / "run/trainer_state.json")["log_history"][0];
  ASSERT_TRUE(entry.contains("flops_per_second")) << entry.dump();
  EXPECT_GT(entry["flops_per_second"].get<double>(), 0);
  EXPECT_DOUBLE_EQ(entry["share_of_ceiling"].get<double>(), entry["flops_per_second"].get<double>() / 2e12);
  for (const auto& [name, value] : entry.items()) EXPECT_NE(name.rfind("gpu_", 0), 0u) << name << " without a GPU";

  std::ofstream(ceilings) << least << R"("matrix_product_tflops": -1})";
  const Result refused = run_convoy(words(folder_ / "bad", {"--ceilings_file", ceilings}));
  EXPECT_EQ(refused.status, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("`matrix_product_tflops` must be a number above 0, it is -1"));
  EXPECT_THAT(refused.output, HasSubstr(ceilings));
}

TEST_F(Cli, BadFilesAreNamed) {
  const auto expect = [&](const std::vector<std::string>& more, int status, const std::string& text) {
    const Result result = run_convoy(words(folder_ / "bad", more));
    EXPECT_EQ(result.status, status) << result.output;
    EXPECT_THAT(result.output, HasSubstr(text));
    EXPECT_THAT(result.output, ::testing::Not(HasSubstr("terminate"))) << "an error, not a crash";
  };
  const std::string broken = folder_ / "broken.jsonl";
  std::ofstream(broken) << "{\"text\": \"fine\"}\n{\"text\": 1\n";
  expect({"--train_files", broken}, 3, "broken.jsonl:2");
  expect({"--train_files", broken, "--skip_bad_samples", "--max_steps", "1"}, 0, "malformed");
  expect({"--train_files", folder_ / "nothing-*.jsonl"}, 2, "nothing-*.jsonl");
  expect({"--learning_rat", "1"}, 2, "learning_rate");
  expect({"--learning_rate", "fast"}, 2, "learning_rate");
  expect({"--tokenizer", folder_ / "no-such"}, 6, "no-such");
  expect({"--model_config", R"({"model_type": "gpt3"})"}, 2, "gpt2");
  expect({"--model_config", R"({"model_type": "gpt2", "vocab_size": 10, "n_embd": 32, "n_layer": 2, "n_head": 2})"}, 2,
         "vocabulary");
  expect({"--seq_length", "100"}, 2, "learned positions");
  expect({"--resume_from_checkpoint", "true"}, 2, "No valid checkpoint found");
  expect({"--eval_strategy", "steps"}, 2, "validation");
  expect({"--lr_scheduler_type", "linnear"}, 2, "linear");
  expect({"--learning_rate", "1e30", "--max_steps", "4"}, 7, "not finite");
  expect({"--learning_rate", "1e30", "--max_steps", "40"}, 7, "10 steps in a row");
}

TEST_F(Cli, BadModelFoldersAreNamed) {
  const auto broken_copy = [&](const std::string& name) {
    const std::string copy = folder_ / name;
    std::filesystem::copy(golden("qwen2/model"), copy, std::filesystem::copy_options::recursive);
    return copy;
  };
  const auto expect = [&](const std::string& model, int status, const std::string& text) {
    const Result result = run_convoy({"train", "--model", model, "--tokenizer", golden("tokenizers/gpt2"),
                                      "--train_files", data(), "--output_dir", folder_ / "out", "--max_steps", "1"});
    EXPECT_EQ(result.status, status) << result.output;
    EXPECT_THAT(result.output, HasSubstr(text));
  };
  const std::string truncated = broken_copy("truncated");
  std::filesystem::resize_file(truncated + "/model.safetensors", 50000);
  expect(truncated, 6, "model.safetensors");
  const std::string missing = broken_copy("missing");
  std::filesystem::remove(missing + "/model.safetensors");
  expect(missing, 6, "missing");
  const std::string wider = broken_copy("wider");
  Json config = read_json(wider + "/config.json");
  config["hidden_size"] = 64;
  write_file_atomic(wider + "/config.json", dump_json(config));
  expect(wider, 3, "has shape");
  const std::string deeper = broken_copy("deeper");
  config = read_json(deeper + "/config.json");
  config["num_hidden_layers"] = 4;
  config.erase("layer_types");
  write_file_atomic(deeper + "/config.json", dump_json(config));
  expect(deeper, 3, "model.layers.3.");
  const std::string activation = broken_copy("activation");
  config = read_json(activation + "/config.json");
  config["hidden_act"] = "relu";
  write_file_atomic(activation + "/config.json", dump_json(config));
  expect(activation, 2, "hidden_act");
}

TEST_F(Cli, TokenizesAndTrainsTokenizers) {
  const Result trained = run_convoy({"tokenizer", "train", data(), "--vocab_size", "320", "--output", folder_ / "tok"});
  ASSERT_EQ(trained.status, 0) << trained.output;
  const Result shown = run_convoy({"tokenize", "--tokenizer", folder_ / "tok", "--text", "The cat"});
  EXPECT_EQ(shown.status, 0) << shown.output;
  EXPECT_THAT(shown.output, HasSubstr("The"));
  const Result counted = run_convoy({"tokenize", data(), "--tokenizer", folder_ / "tok", "--validation_split", "0.1"});
  EXPECT_EQ(counted.status, 0) << counted.output;
  EXPECT_THAT(counted.output, HasSubstr("bigram loss"));
}

TEST_F(Cli, ConfigWritesTheAnswersAsARunFile) {
  const std::string answers = folder_ / "answers";
  const auto config = [&](const std::string& lines, const std::string& output) {
    std::ofstream(answers) << lines;
    const std::string line = std::string(CONVOY_PROGRAM) + " config --output " + (folder_ / output) + " < " + answers +
                             " > " + (folder_ / "log") + " 2>&1";
    const int status = std::system(line.c_str());
    return WEXITSTATUS(status);
  };
  // multi-GPU, one machine, DeepSpeed by hand: stage 3 (after a wrong answer), cpu, cpu, 4, clipping 0.5; 4 processes,
  // bf16.
  ASSERT_EQ(config("2\n\nyes\nno\n7\n3\ncpu\n1\n4\nyes\n0.5\n4\nbf16\n", "a.yaml"), 0) << read_file(folder_ / "log");
  EXPECT_THAT(read_file(folder_ / "log"), HasSubstr("'7' is no answer"));
  EXPECT_THAT(read_file(folder_ / "a.yaml"),
              HasSubstr("num_processes: 4\nzero_stage: 3\noffload_optimizer: cpu\noffload_param: cpu\n"
                        "gradient_accumulation_steps: 4\nmax_grad_norm: 0.5\nbf16: true\n"));
  EXPECT_EQ(config("2\n\nyes\nno\n7\n3\n", "b.yaml"), 2) << "the answers end";
  EXPECT_FALSE(std::filesystem::exists(folder_ / "b.yaml"));
  EXPECT_EQ(config("\n\n\n", "a.yaml"), 2) << "the file is there";
  ASSERT_EQ(config("\n\n\n", "c.yaml"), 0);
  EXPECT_THAT(read_file(folder_ / "c.yaml"), HasSubstr("num_processes: 1\n"));
  std::ofstream(folder_ / "accelerate.yaml")
      << "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 2\n"
         "mixed_precision: fp16\ndeepspeed_config:\n  zero_stage: 2\n  offload_optimizer_device: cpu\n"
         "  gradient_accumulation_steps: 4\n  gradient_clipping: 1.0\n";
  const Result converted =
      run_convoy({"config", "--from", folder_ / "accelerate.yaml", "--output", folder_ / "d.yaml"});
  ASSERT_EQ(converted.status, 0) << converted.output;
  EXPECT_THAT(read_file(folder_ / "d.yaml"),
              HasSubstr("num_processes: 2\nzero_stage: 2\noffload_optimizer: cpu\n"
                        "gradient_accumulation_steps: 4\nmax_grad_norm: 1\nfp16: true\n"));
  const auto convert_fp8 = [&](const std::string& format) {
    std::ofstream(folder_ / "fp8.yaml") << "num_processes: 1\nmixed_precision: fp8\nfp8_config:\n  fp8_format: "
                                        << format << "\n";
    return run_convoy({"config", "--from", folder_ / "fp8.yaml", "--output", folder_ / "e.yaml", "--overwrite"});
  };
  ASSERT_EQ(convert_fp8("HYBRID").status, 0);
  EXPECT_THAT(read_file(folder_ / "e.yaml"), HasSubstr("num_processes: 1\nfp8: true\n"));
  const Result other = convert_fp8("E4M3");
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.output, HasSubstr("fp8_format E4M3 has no counterpart: gradients are E5M2"));
}

TEST_F(Cli, Fp8TrainsWhatFitsAndSaysWhatDoesNot) {
  const Result run = run_convoy(words(folder_ / "run", {"--fp8", "--logging_steps", "1"}));
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, ::testing::Not(HasSubstr("stay in bf16")));
  const Result half = run_convoy(words(folder_ / "half", {"--bf16", "--logging_steps", "1"}));
  ASSERT_EQ(half.status, 0) << half.output;
  const auto losses = [&](const char* of) {
    std::vector<double> all;
    std::istringstream lines(read_file(folder_ / of + "/log.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const Json record = parse_json(line, "log.jsonl");
      if (record.contains("loss")) all.push_back(record["loss"].get<double>());
    }
    return all;
  };
  const std::vector<double> eight = losses("run"), sixteen = losses("half");
  ASSERT_EQ(eight.size(), 12U);
  for (std::size_t step = 0; step < eight.size(); ++step) EXPECT_NEAR(eight[step], sixteen[step], 0.02 * sixteen[step]);
  EXPECT_NE(eight, sixteen);

  // It has no state of its own: a resumed run gives the same bits, and a run in bf16 may go on with it.
  for (const char* from : {"run", "half"}) {
    const Result resumed =
        run_convoy(words(folder_ / "on", {"--fp8", "--resume_from_checkpoint", folder_ / from + "/checkpoint-6"}));
    ASSERT_EQ(resumed.status, 0) << resumed.output;
    EXPECT_EQ(read_file(folder_ / "on/model.safetensors") == read_file(folder_ / "run/model.safetensors"),
              from == std::string("run"));
    std::filesystem::remove_all(folder_ / "on");
  }

  std::vector<std::string> planning = words(folder_ / "plan", {"--fp8"});
  planning[0] = "plan";
  const Result plan = run_convoy(planning);
  EXPECT_THAT(plan.output, HasSubstr("bf16 with fp8 products"));
  const Result none =
      run_convoy(words(folder_ / "none", {"--fp8", "--seq_length", "31", "--per_device_train_batch_size", "1"}));
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.output, HasSubstr("no product of the model can be computed in fp8"));
}

TEST_F(Cli, EarlyStoppingAndTheBestModel) {
  const Result run = run_convoy(words(
      folder_ / "run", {"--validation_split", "0.1", "--eval_strategy", "steps", "--eval_steps", "3", "--save_steps",
                        "3", "--max_steps", "60", "--load_best_model_at_end", "--early_stopping_patience", "2",
                        "--save_total_limit", "2", "--early_stopping_threshold", "10"}));
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("early stop"));
  const Json state = read_json(folder_ / "run/trainer_state.json");
  const std::string best = state["best_model_checkpoint"].get<std::string>();
  EXPECT_TRUE(read_file(best + "/model.safetensors") == read_file(folder_ / "run/model.safetensors"));
}

}  // namespace
}  // namespace convoy
