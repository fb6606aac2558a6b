// The double-heads GPT-1 against transformers: the choice's loss with half of the language model's, its gradients, the
// logits of both heads; and what the two Hugging Face folders of a headed model share with the plain one.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/model_folder.h"
#include "golden_batch.h"
#include "support/graph_runner.h"
#include "support/test_device.h"
#include "train/engine.h"
#include "train/weights_io.h"

namespace convoy {
namespace {

Json without_dropout(Json config) {
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_first_dropout"}) config[key] = 0.0;
  return config;
}

struct ChoiceBatch {
  GoldenBatch tokens;  // the alternatives as rows
  std::vector<std::int32_t> rows, labels;
  std::vector<std::uint64_t> keys;
  std::int64_t items = 0, alternatives = 0;
  BatchView view() const {
    BatchView view = tokens.view();
    view.head_rows = rows;
    view.head_labels = labels;
    view.head_keys = keys;
    return view;
  }
};

ChoiceBatch read_choice(const SafetensorsFile& io) {
  ChoiceBatch batch;
  const Shape shape = io.find("input_ids").spec.shape;
  batch.items = shape[0];
  batch.alternatives = shape[1];
  batch.tokens = read_batch(io, shape[0] * shape[1], shape[2]);
  const auto at = integers(io, "mc_token_ids");
  for (std::size_t r = 0; r < at.size(); ++r) {
    batch.rows.push_back(static_cast<std::int32_t>(static_cast<std::int64_t>(r) * shape[2] + at[r]));
    batch.keys.push_back(r);
  }
  for (const std::int64_t label : integers(io, "mc_labels")) batch.labels.push_back(static_cast<std::int32_t>(label));
  return batch;
}

class GoldenChoice : public ::testing::Test {
 protected:
  const std::unique_ptr<Device> owned_ = testing::test_device();
  Device& device_ = *owned_;
  const std::filesystem::path folder_ = golden("openai_gpt_choice");
};

TEST_F(GoldenChoice, LossesAndGradients) {
  const Json expected = read_json(folder_ / "golden.json");
  const SafetensorsFile io(folder_ / "io.safetensors");
  const ModelFolder folder(folder_ / "model");
  const auto model = make_model(without_dropout(folder.config()), "config.json");
  ASSERT_NE(model->task_head(), nullptr);
  EXPECT_EQ(model->task_head()->outputs, 2);
  const ChoiceBatch batch = read_choice(io);
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
    TrainShape shape;
    shape.rows = batch.tokens.rows;
    shape.seq = batch.tokens.seq;
    shape.rows_per_item = batch.alternatives;
    shape.auxiliary_weight = 0.5;
    shape.recompute = mode;
    Engine engine(device_, *model, shape);
    load_weights(engine.store(), folder);
    const LossTotals totals = engine.micro_step(batch.view(), 1.0 / static_cast<double>(batch.items),
                                                0.5 / static_cast<double>(batch.tokens.target_count));
    const double choice = expected["mc_loss"], language = expected["lm_loss"];
    EXPECT_NEAR(totals.mean(), choice, 1e-5 * choice);
    EXPECT_NEAR(totals.auxiliary_mean(), language, 1e-5 * language);
    EXPECT_EQ(totals.targets, 3);
    for (const FileTensor& tensor : model->file_tensors()) {
      const std::vector<double> wanted = floats(io, "grad." + tensor.name);
      const std::vector<double> made = file_gradient(engine, tensor);
      if (tensor.name.ends_with("summary.bias")) {
        EXPECT_LT(std::abs(made[0]), 1e-6);  // both scores move together: zero but for rounding
      } else {
        EXPECT_LT(relative_distance(made, wanted), 1e-4) << tensor.name;
      }
    }
  }
}

// Runs the model's graph of one kind over the golden batch.
std::vector<double> run_kind(Device& device, const Model& model, const ModelFolder& folder, const ChoiceBatch& batch,
                             GraphKind kind) {
  GraphOptions options;
  options.kind = kind;
  options.tokens = batch.tokens.rows * batch.tokens.seq;
  options.table_length = batch.tokens.seq;
  options.logit_rows = options.tokens;
  options.items = batch.items;
  const ModelGraph built = model.build(options);
  testing::Tensors sources;
  for (const StoredBinding& binding : match_folder(model, folder).bindings)
    sources[model.parameters()[binding.parameter].name] =
        testing::from_bytes(DType::kF32, folder.tensor(binding.stored.name).bytes);
  const auto put = [&](const char* name, const auto& values) {
    sources[name] = std::vector<double>(values.begin(), values.end());
  };
  put(batch_input::kIds, batch.tokens.ids);
  put(batch_input::kTargets, batch.tokens.targets);
  put(batch_input::kPositions, batch.tokens.positions);
  put(batch_input::kSeqStart, batch.tokens.seq_start);
  put(batch_input::kHeadRows, batch.rows);
  std::vector<double> rows;
  for (std::int64_t i = 0; i < options.tokens; ++i) rows.push_back(static_cast<double>(i));
  sources[batch_input::kRows] = rows;
  return testing::run_graph(device, built.graph, sources).at("out0");
}

TEST_F(GoldenChoice, LogitsOfBothHeads) {
  const SafetensorsFile io(folder_ / "io.safetensors");
  const ModelFolder folder(folder_ / "model");
  const auto model = make_model(folder.config(), "config.json");  // its dropout is off outside of training
  const ChoiceBatch batch = read_choice(io);
  const auto compare = [&](GraphKind kind, const char* name) {
    const std::vector<double> made = run_kind(device_, *model, folder, batch, kind);
    const std::vector<double> wanted = floats(io, name);
    ASSERT_EQ(made.size(), wanted.size());
    for (std::size_t i = 0; i < made.size(); ++i) ASSERT_NEAR(made[i], wanted[i], 1e-4) << name << " " << i;
  };
  compare(GraphKind::kScores, "mc_logits");
  compare(GraphKind::kLogits, "logits");
}

TEST_F(GoldenChoice, WeightsMatchOtherTasks) {
  const ModelFolder headed(folder_ / "model"), plain(golden("openai_gpt") / "model");
  ModelOptions options;
  options.head = ModelOptions::Head::kChoice;
  const auto choice = make_model(plain.config(), "config.json", options);
  const WeightMap fresh = match_folder(*choice, plain);  // a language model's weights: the head starts fresh
  EXPECT_EQ(fresh.fresh.size(), 2U);
  EXPECT_EQ(fresh.bindings.size(), choice->file_tensors().size());
  options.head = ModelOptions::Head::kLanguageModel;
  const auto language = make_model(headed.config(), "config.json", options);
  EXPECT_EQ(match_folder(*language, headed).left_out.size(), 2U);  // and the other way its head is left out
  options.head = ModelOptions::Head::kClasses;
  options.outputs = 3;
  const auto classes = make_model(plain.config(), "config.json", options);
  EXPECT_EQ(classes->parameters().back().shape, Shape({3, 32}));
  EXPECT_EQ(match_folder(*classes, plain).fresh.size(), 1U);
  EXPECT_THROW(match_folder(*classes, ModelFolder(golden("gpt2") / "model")), Error);
  // Three more tokens than the stored embedding has rows.
  Json grown = plain.config();
  grown["vocab_size"] = 102;
  options = {};
  options.head = ModelOptions::Head::kChoice;
  const auto without = make_model(grown, "config.json", options);
  EXPECT_THROW(match_folder(*without, plain), Error);
  options.added_tokens = 3;
  const auto with = make_model(grown, "config.json", options);
  EXPECT_EQ(match_folder(*with, plain).fresh.size(), 3U);
}

TEST(TaskHeads, AreRefusedWhereThereIsNone) {
  const Json llama = ModelFolder(golden("llama") / "model").config();
  ModelOptions options;
  options.head = ModelOptions::Head::kChoice;
  EXPECT_THROW(make_model(llama, "config.json", options), Error);
  options.head = ModelOptions::Head::kClasses;
  EXPECT_EQ(make_model(llama, "config.json", options)->task_head()->outputs, 2);  // Hugging Face's default
  options.outputs = 1;
  EXPECT_THROW(make_model(llama, "config.json", options), Error);
}

}  // namespace
}  // namespace convoy
