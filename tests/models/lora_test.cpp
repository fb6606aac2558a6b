// LoRA: reference values, names, and what the programs of frozen weights do without.
#include "models/lora.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "golden_batch.h"
#include "graph/ops/linear_cross_entropy.h"
#include "models/freeze.h"
#include "passes/lifetimes.h"
#include "support/graph_runner.h"
#include "train/adapter_io.h"
#include "train/tiny_model.h"
#include "train/weights_io.h"

namespace convoy {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";

std::unique_ptr<Model> tiny(const std::string& family) {
  return make_model(testing::tiny_config(family), "test");
}

std::unique_ptr<Model> golden_model(const ModelFolder& folder) {
  return add_lora(make_model(folder.config(), "config.json"), read_adapter_config(golden("lora") / "adapter_start"),
                  "adapter_config.json");
}

// "….lora_A.weight" as the reference's gradients are called.
std::string with_default(std::string name) {
  name.insert(name.size() - std::strlen("weight"), "default.");
  return name;
}

TEST(LoraGolden, LossGradientsAndThreeSteps) {
  CpuDevice device;
  const Json expected = read_json(golden("lora") / "golden.json");
  const SafetensorsFile io(golden("lora") / "io.safetensors");
  const ModelFolder folder(golden("lora") / "model");
  const auto model = golden_model(folder);
  const GoldenBatch batch = read_batch(io);
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
    TrainShape shape;
    shape.rows = batch.rows;
    shape.seq = batch.seq;
    shape.recompute = mode;
    shape.optimizer.beta1 = expected["betas"][0];
    shape.optimizer.beta2 = expected["betas"][1];
    shape.loss.chunk_rows = 8;
    Engine engine(device, *model, shape);
    load_weights(engine.store(), folder);
    load_adapter(engine.store(), golden("lora") / "adapter_start");
    const double scale = 1.0 / static_cast<double>(batch.target_count);
    for (int step = 0; step < 4; ++step) {
      const LossTotals totals = engine.micro_step(batch.view(), scale);
      const double loss = expected["losses"][static_cast<std::size_t>(step)];
      EXPECT_NEAR(totals.mean(), loss, (step == 0 ? 1e-5 : 1e-4) * loss) << "step " << step;
      for (const FileTensor& tensor : model->file_tensors()) {
        if (step != 0 || !tensor.adapter) continue;
        EXPECT_LT(relative_distance(file_gradient(engine, tensor), floats(io, "grad." + with_default(tensor.name))),
                  1e-4)
            << tensor.name;
      }
      if (step == 3) break;
      EXPECT_FALSE(engine.update(expected["lr"], step + 1).skipped);
    }
    const ModelFolder after(golden("lora") / "adapter_step3" / kAdapterWeights);
    for (const FileTensor& tensor : model->file_tensors()) {
      if (!tensor.adapter) continue;
      const auto now =
          testing::from_bytes(DType::kF32, engine.store().rows(tensor.parameter, 0, tensor.shape[0], DType::kF32));
      EXPECT_LT(relative_distance(now, testing::from_bytes(DType::kF32, after.tensor(tensor.name).bytes)), 1e-3)
          << tensor.name;
    }
  }
}

// Loss of the merged model equals the reference's loss with the adapter beside it.
TEST(LoraGolden, MergedWeightsGiveTheSameLoss) {
  CpuDevice device;
  const Json expected = read_json(golden("lora") / "golden.json");
  const SafetensorsFile io(golden("lora") / "io.safetensors");
  const ModelFolder folder(golden("lora") / "model");
  const ModelFolder adapter(golden("lora") / "adapter_step3" / kAdapterWeights);
  const auto model = golden_model(folder);
  const std::filesystem::path merged = std::filesystem::path(::testing::TempDir()) / "convoy_lora_merged";
  write_model_folder(merged, folder.config(), merged_sources(folder, *model, adapter));
  const ModelFolder result(merged);
  const auto plain = make_model(result.config(), "config.json");
  const GoldenBatch batch = read_batch(io);
  TrainShape shape;
  shape.rows = batch.rows;
  shape.seq = batch.seq;
  Engine engine(device, *plain, shape);
  load_weights(engine.store(), result);
  const double loss = expected["losses"][3];
  EXPECT_NEAR(engine.micro_step(batch.view(), 1).mean(), loss, 1e-5 * loss);
  std::filesystem::remove_all(merged);
}

TEST(LoraNames, AllLinearTakesEveryLinearLayerButTheHead) {
  const std::map<std::string, std::set<std::string>> expected = {
      {"qwen2", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}},
      {"llama", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}},
      {"glm4", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"}},
      {"chatglm", {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}},
      {"gpt2", {"c_attn", "c_proj", "c_fc"}}};
  for (const auto& [family, ends] : expected) {
    LoraConfig config;
    const auto model = add_lora(tiny(family), config, "test");
    std::set<std::string> found;
    for (const LoraAdapter& adapter : lora_adapters(*model)) {
      const std::string& name = adapter.module.name;
      found.insert(name.substr(name.rfind('.') + 1));
      const auto& parameters = model->parameters();
      EXPECT_EQ(parameters[adapter.a].name, std::string(kPrefix) + name + ".lora_A.weight");
      EXPECT_EQ(parameters[adapter.a].shape, Shape({8, adapter.module.in}));
      EXPECT_EQ(parameters[adapter.b].shape, Shape({adapter.module.out, 8}));
    }
    EXPECT_EQ(found, ends) << family;
    const LoraConfig named = resolved(config, *model);
    EXPECT_EQ(std::set<std::string>(named.targets.names.begin(), named.targets.names.end()), ends);
  }
}

TEST(LoraNames, ATiedTensorIsSavedUnderBothNames) {
  for (const char* saved : {"lm_head", "embed_tokens"}) {
    LoraConfig config;
    config.targets = {{"q_proj"}, false};
    config.modules_to_save = {saved};
    const auto model = add_lora(tiny("qwen2"), config, "test");
    std::set<std::string> names;
    for (const StoredBinding& binding : adapter_map(*model, DType::kF32).bindings) names.insert(binding.stored.name);
    EXPECT_EQ(names.count("base_model.model.model.embed_tokens.weight"), 1u);
    EXPECT_EQ(names.count("base_model.model.lm_head.weight"), 1u);
    const auto modules = resolved(config, *model).modules_to_save;
    EXPECT_EQ(std::set<std::string>(modules.begin(), modules.end()),
              (std::set<std::string>{"lm_head", "embed_tokens"}));
  }
}

TEST(LoraNames, LayersExcludedModulesAndRegularExpressions) {
  LoraConfig config;
  config.targets = {{"q_proj", "mlp.up_proj"}, false};
  config.layers = {1};
  EXPECT_EQ(lora_adapters(*add_lora(tiny("llama"), config, "test")).size(), 2u);
  config.exclude = {{"q_proj"}, false};
  EXPECT_EQ(lora_adapters(*add_lora(tiny("llama"), config, "test")).size(), 1u);
  LoraConfig pattern;
  pattern.targets = {{R"(model\.layers\.\d+\.self_attn\.[qk]_proj)"}, true};
  EXPECT_EQ(lora_adapters(*add_lora(tiny("llama"), pattern, "test")).size(), 4u);
}

TEST(LoraNames, WhatDoesNotExistOrCannotBeAdaptedIsSaid) {
  const auto message = [](const LoraConfig& config) -> std::string {
    try {
      add_lora(tiny("llama"), config, "here");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  LoraConfig config;
  config.targets = {{"q_prj"}, false};
  EXPECT_NE(message(config).find("did you mean 'q_proj'"), std::string::npos) << message(config);
  config.targets = {{"lm_head"}, false};
  EXPECT_NE(message(config).find("modules_to_save"), std::string::npos) << message(config);
  config.targets = {{"all-linear"}, false};
  config.layers = {77};
  EXPECT_NE(message(config).find("leave no layer"), std::string::npos) << message(config);
  config.layers.clear();
  config.modules_to_save = {"lm_hed"};
  EXPECT_NE(message(config).find("lm_hed"), std::string::npos) << message(config);
  config.modules_to_save = {"q_proj"};
  EXPECT_NE(message(config).find("one tensor in this model"), std::string::npos) << message(config);
}

TEST(LoraConfigFile, IsReadAndWrittenAsPeftDoes) {
  const Json theirs = read_json(golden("lora") / "adapter_start" / kAdapterConfig);
  const LoraConfig config = read_lora_config(theirs, "adapter_config.json");
  EXPECT_EQ(config.rank, 4);
  const Json ours = lora_config_json(config, "", false);
  for (const auto& [key, value] : ours.items()) {
    ASSERT_TRUE(theirs.contains(key)) << key;
    EXPECT_EQ(value, theirs[key]) << key;
  }
  Json dora = theirs;
  dora["use_dora"] = true;
  EXPECT_THROW(read_lora_config(dora, "x"), Error);
  for (const char* text : {"[]", R"({"r": "many"})", R"({"r": 0, "target_modules": "x"})", R"({"target_modules": [3]})",
                           R"({"target_modules": null})", R"({"target_modules": "q", "lora_dropout": 1})",
                           R"({"target_modules": "q", "rank_pattern": {"q": -1}})"}) {
    EXPECT_THROW(read_lora_config(Json::parse(text), "x"), Error) << text;
  }
}

std::vector<std::string> trained_names(const Model& model) {
  std::vector<std::string> names;
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.trainable) names.push_back(parameter.name);
  }
  return names;
}

TEST(Plan, FrozenWeightsHaveNoGradientsAndNoState) {
  CpuDevice device;
  for (const std::string& family : testing::tiny_families()) {
    for (int stage = 0; stage <= 3; ++stage) {
      const auto model = add_lora(tiny(family), {}, "test");
      TrainShape shape;
      shape.seq = 16;
      shape.dtype = DType::kBF16;
      shape.zero.stage = stage;
      shape.zero.world = stage == 0 ? 1 : 2;
      shape.zero.persistence_threshold = 0;
      testing::set_audio(family, shape);
      const ProgramSet programs = make_programs(*model, shape, device);
      const auto trained = trained_names(*model);
      std::size_t views = 0;
      for (const Slot& slot : programs.layout.slots(Role::kGradient))
        views += std::count_if(trained.begin(), trained.end(),
                               [&](const std::string& n) { return slot.name == n || slot.name == shard_name(n); });
      EXPECT_EQ(programs.layout.slots(Role::kGradient).size(), trained.size());
      EXPECT_EQ(views, trained.size());
      EXPECT_EQ(programs.layout.slots(Role::kMaster).size(), trained.size());
      EXPECT_EQ(programs.layout.slots(Role::kMoment).size(), 2 * trained.size());
      std::size_t products = 0;
      for (const Instruction& each : programs.micro.instructions) {
        products += each.op->name() == "linear_dw";
        EXPECT_NE(each.op->name(), "bias_grad");
        EXPECT_NE(each.op->name(), "embedding_grad");
        const auto* head = dynamic_cast<const LinearCrossEntropyGrad*>(each.op.get());
        EXPECT_FALSE(head != nullptr && head->dweight);
      }
      EXPECT_EQ(products, 2 * lora_adapters(*model).size()) << family;
    }
  }
}

TEST(Plan, TakesExactlyWhatItSays) {
  for (const std::string& family : testing::tiny_families()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
        LoraConfig config;
        config.dropout = 0.1;
        const auto whole = tiny(family);
        const auto model = add_lora(tiny(family), config, "test");
        TrainShape shape;
        shape.seq = 24;
        shape.dtype = dtype;
        shape.accumulation = 2;
        shape.recompute = mode;
        testing::set_audio(family, shape);
        CpuDevice planner, device;
        const ProgramSet set = make_programs(*model, shape, planner);
        const auto bytes = [](const ProgramSet& of, Role role) {
          return of.sizes.bytes[static_cast<std::size_t>(role)];
        };
        Engine engine(device, *model, shape);
        engine.store().initialize(5);
        const auto batch = testing::random_batch(shape.rows, shape.seq, 97);
        engine.micro_step(batch.view(), 0.01);
        engine.micro_step(batch.view(), 0.01);
        engine.update(1e-3, 1);
        EXPECT_EQ(device.memory().peak, set.sizes.total()) << family;
        EXPECT_EQ(aligned(engine.micro_executor().high_water(Role::kActivation)), bytes(set, Role::kActivation));
        // The adapters of these tiny models are a third of the model.
        const ProgramSet full = make_programs(*whole, shape, planner);
        EXPECT_LT(bytes(set, Role::kGradient), bytes(full, Role::kGradient));
        EXPECT_LT(bytes(set, Role::kMoment), bytes(full, Role::kMoment));
      }
    }
  }
}

TEST(Plan, NothingIsDifferentiatedBelowTheLowestTrainedWeight) {
  CpuDevice device;
  LoraConfig config;
  config.layers = {1};
  config.targets = {{"down_proj"}, false};
  const auto model = add_lora(tiny("llama"), config, "test");
  TrainShape shape;
  shape.seq = 16;
  const ProgramSet programs = make_programs(*model, shape, device);
  std::size_t backward = 0;
  for (const Instruction& each : programs.micro.instructions) {
    if (each.phase != Phase::kBackward) continue;
    EXPECT_NE(each.block, 0);
    EXPECT_NE(each.op->name(), "attention_grad");
    ++backward;
  }
  EXPECT_GT(backward, 0u);
  // Trained alone, the head needs no gradient of what it reads.
  const auto head = freeze(tiny("llama"), {"*", "!lm_head.weight"}, "freeze");
  for (const Instruction& each : make_programs(*head, shape, device).micro.instructions) {
    EXPECT_TRUE(each.phase != Phase::kBackward || each.op->name() == "linear_cross_entropy_grad");
    if (const auto* op = dynamic_cast<const LinearCrossEntropyGrad*>(each.op.get())) {
      EXPECT_FALSE(op->dx);
      EXPECT_TRUE(op->dweight);
    }
  }
}

// The gradients that are left are those of the whole model, whatever is frozen.
TEST(Freeze, TrainedGradientsAreThoseOfTheWholeModel) {
  CpuDevice device;
  for (const std::string& family : testing::tiny_families()) {
    TrainShape shape;
    shape.seq = 24;
    const auto whole = tiny(family);
    const std::vector<std::string> patterns =
        family == "gpt2" ? std::vector<std::string>{"transformer.wte.*", "*.h.0.attn.*", "*ln_2*"}
        : family == "chatglm"
            ? std::vector<std::string>{"*.word_embeddings.*", R"(/.*layers\.0\.self_attention\..*/)", "*layernorm*"}
        : family.starts_with("openai")
            ? std::vector<std::string>{"transformer.tokens_embed.*", "*.h.0.attn.*", "*ln_2*"}
        : family == "whisper"
            ? std::vector<std::string>{"*.conv1.*", R"(/.*layers\.0\.self_attn\..*/)", "*layer_norm.weight"}
        : family == "glmasr"
            ? std::vector<std::string>{"*.conv1.*", R"(/.*layers\.0\.self_attn\..*/)", "*norm.weight"}
            : std::vector<std::string>{"model.embed_tokens.*", R"(/.*layers\.0\.self_attn\..*/)", "*norm.weight"};
    testing::set_audio(family, shape);
    const auto part = freeze(tiny(family), patterns, "freeze");
    ASSERT_LT(trainable_count(*part), part->parameter_count());
    Engine all(device, *whole, shape), some(device, *part, shape);
    all.store().initialize(5);
    some.store().initialize(5);
    const auto batch = testing::random_batch(shape.rows, shape.seq, 97);
    all.micro_step(batch.view(), 1);
    some.micro_step(batch.view(), 1);
    for (std::size_t p = 0; p < part->parameters().size(); ++p) {
      if (!part->parameters()[p].trainable) continue;
      EXPECT_EQ(all.gradient(p), some.gradient(p)) << part->parameters()[p].name;
    }
    const auto& all_of_them = part->parameters();
    const auto frozen = std::find_if(all_of_them.begin(), all_of_them.end(),
                                     [](const Parameter& parameter) { return !parameter.trainable; });
    const auto p = static_cast<std::size_t>(frozen - all_of_them.begin());
    const auto before = some.store().rows(p, 0, frozen->shape[0], DType::kF32);
    some.update(1e-2, 1);
    EXPECT_TRUE(some.store().rows(p, 0, frozen->shape[0], DType::kF32) == before) << family << ", " << frozen->name;
  }
}

TEST(Freeze, BadPatternsAreSaid) {
  EXPECT_THROW(freeze(tiny("llama"), {"model.layer.*"}, "freeze"), Error);
  EXPECT_THROW(freeze(tiny("llama"), {"*"}, "freeze"), Error);
  EXPECT_THROW(freeze(tiny("llama"), {"/model.(/"}, "freeze"), Error);
  EXPECT_THROW(freeze(tiny("llama"), {"*.q_proj.weight"}, "freeze"), Error);
}

}  // namespace
}  // namespace convoy
