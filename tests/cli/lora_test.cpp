// LoRA runs of the program: train, resume, go on, generate, merge.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "program.h"
#include "tiny_run.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::Result;
using testing::run_convoy;

class LoraCli : public testing::TinyRun {
 protected:
  LoraCli() {
    const Result base = run_convoy(words(base_folder(), {"--save_strategy", "no"}));
    EXPECT_EQ(base.status, 0) << base.output;
  }
  std::string base_folder() const { return folder_ / "base"; }
  // A run on the base model.
  std::vector<std::string> tuned(const std::string& output, const std::vector<std::string>& more) const {
    std::vector<std::string> all = words(output, {"--model", base_folder()});
    const auto scratch = std::find(all.begin(), all.end(), "--from_scratch");
    all.erase(scratch, scratch + 3);  // and the model_config
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(LoraCli, TrainsResumesGeneratesAndMerges) {
  const std::vector<std::string> lora = {"--lora_rank", "4", "--lora_dropout", "0.1", "--target_modules", "c_attn"};
  const Result run = run_convoy(tuned(folder_ / "run", lora));
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("of them trained"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/model.safetensors"));
  const SafetensorsFile adapter(folder_ / "run/adapter_model.safetensors");
  EXPECT_EQ(adapter.tensors().size(), 4u);
  const auto a = adapter.find("base_model.model.transformer.h.1.attn.c_attn.lora_A.weight");
  EXPECT_EQ(a.spec.shape, Shape({4, 32}));
  EXPECT_EQ(adapter.find("base_model.model.transformer.h.1.attn.c_attn.lora_B.weight").spec.shape, Shape({96, 4}));
  const Json config = read_json(folder_ / "run/adapter_config.json");
  EXPECT_EQ(config["base_model_name_or_path"], base_folder());
  EXPECT_EQ(config["fan_in_fan_out"], true);
  EXPECT_EQ(config["target_modules"], Json::array({"c_attn"}));

  // From the checkpoint of step 6, on two ranks that shard everything, the same bytes.
  std::filesystem::create_directories(folder_ / "again");
  std::filesystem::copy(folder_ / "run/checkpoint-6", folder_ / "again/checkpoint-6",
                        std::filesystem::copy_options::recursive);
  std::vector<std::string> more = lora;
  more.insert(more.end(), {"--resume_from_checkpoint", "true", "--num_processes", "2", "--zero_stage", "3",
                           "--gradient_accumulation_steps", "1", "--threads", "1"});
  const Result again = run_convoy(tuned(folder_ / "again", more));
  ASSERT_EQ(again.status, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr("at step 6"));
  EXPECT_EQ(read_file(folder_ / "again/adapter_model.safetensors"),
            read_file(folder_ / "run/adapter_model.safetensors"));

  // The merged model says what base and adapter say.
  const Result merged =
      run_convoy({"export", folder_ / "run/checkpoint-12", "--output", folder_ / "merged", "--merge"});
  ASSERT_EQ(merged.status, 0) << merged.output;
  const auto text = [&](const std::vector<std::string>& model) {
    std::vector<std::string> all = {"generate"};
    all.insert(all.end(), model.begin(), model.end());
    all.insert(all.end(), {"--prompt", "The cat", "--greedy", "-n", "12"});
    const Result result = run_convoy(all);
    EXPECT_EQ(result.status, 0) << result.output;
    return result.output;
  };
  const std::string said = text({folder_ / "merged"});
  EXPECT_EQ(text({base_folder(), "--adapter", folder_ / "run"}), said);
  EXPECT_EQ(text({folder_ / "run"}), said);
}

TEST_F(LoraCli, GoesOnWithAnAdapterAndRefusesWhatDoesNotFit) {
  ASSERT_EQ(run_convoy(tuned(folder_ / "run", {"--lora_rank", "4", "--max_steps", "6"})).status, 0);
  const Result on = run_convoy(tuned(folder_ / "on", {"--adapter", folder_ / "run", "--max_steps", "2"}));
  EXPECT_EQ(on.status, 0) << on.output;
  EXPECT_EQ(read_json(folder_ / "on/adapter_config.json"), read_json(folder_ / "run/adapter_config.json"));
  const auto refused = [&](const std::vector<std::string>& more, const char* says) {
    const Result result = run_convoy(tuned(folder_ / "no", more));
    EXPECT_NE(result.status, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr(says));
    EXPECT_THAT(result.output, Not(HasSubstr("internal")));
  };
  refused({"--adapter", folder_ / "run", "--lora_rank", "8"}, "leave lora_rank out");
  refused({"--lora_rank", "8", "--freeze", "*wte*"}, "exclude each other");
  refused({"--lora_rank", "8", "--target_modules", "c_atn"}, "did you mean 'c_attn'");
  refused({"--lora_rank", "8", "--layers_to_transform", "x"}, "neither a layer nor a range");
  refused({"--freeze", "*"}, "nothing to train");
  refused({"--lora_rank", "8", "--resume_from_checkpoint", folder_ / "run/checkpoint-6"}, "has shape [4, 32]");
  refused({"--lora_rank", "4", "--lora_alpha", "4", "--resume_from_checkpoint", folder_ / "run/checkpoint-6"},
          "keep lora_rank, lora_alpha");
  std::vector<std::string> scratch = words(folder_ / "no", {"--lora_rank", "4"});
  EXPECT_THAT(run_convoy(scratch).output, HasSubstr("from_scratch starts from random weights"));
}

TEST_F(LoraCli, FrozenWeightsStayAsTheyAre) {
  const Result run = run_convoy(tuned(folder_ / "run", {"--freeze", "*.h.*", "!*.h.1.mlp.*"}));
  ASSERT_EQ(run.status, 0) << run.output;
  const SafetensorsFile before(std::filesystem::path(base_folder()) / "model.safetensors");
  const SafetensorsFile after(folder_ / "run/model.safetensors");
  for (const SafetensorsTensor& tensor : before.tensors()) {
    const auto a = before.bytes(tensor), b = after.find(tensor.name).bytes;
    const bool frozen =
        tensor.name.find(".h.") != std::string::npos && tensor.name.find(".h.1.mlp.") == std::string::npos;
    EXPECT_EQ(std::equal(a.begin(), a.end(), b.begin(), b.end()), frozen) << tensor.name;
  }
}

}  // namespace
}  // namespace convoy
