// Losses, logits, gradients and optimizer steps against transformers, for every model (see
// tests/golden/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "checkpoint/model_folder.h"
#include "golden_batch.h"
#include "support/graph_runner.h"
#include "support/test_device.h"
#include "train/engine.h"
#include "train/weights_io.h"

namespace convoy {
namespace {

// The golden runs are made without dropout.
Json without_dropout(Json config) {
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) {
    if (config.contains(key)) config[key] = 0.0;
  }
  return config;
}

// The references' names, which are those in memory, by the canonical ones of files.
std::map<std::string, std::string> names_in(const SafetensorsFile& io, const Model& model) {
  std::map<std::string, std::string> names;
  for (const SafetensorsTensor& tensor : io.tensors()) {
    const std::string& name = tensor.name;
    const std::string stepped = "step3.";
    if (name.starts_with(stepped)) names[model.renamed(name.substr(stepped.size()))] = name.substr(stepped.size());
  }
  return names;
}

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<Device> owned_ = testing::test_device();
  Device& device_ = *owned_;
};

TEST_P(Golden, LossGradientsAndSteps) {
  const Json expected = read_json(golden(GetParam()) / "golden.json");
  const SafetensorsFile io(golden(GetParam()) / "io.safetensors");
  const ModelFolder folder(golden(GetParam()) / "model");
  const auto model = make_model(without_dropout(folder.config()), "config.json");
  EXPECT_EQ(model->parameter_count(), expected["params"].get<std::int64_t>());
  const GoldenBatch batch = read_batch(io, *model, folder.config());
  const auto reference = [&, names = names_in(io, *model)](const std::string& what, const FileTensor& tensor) {
    return floats(io, what + names.at(tensor.name));
  };
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
    TrainShape shape = shape_for(batch, expected["optimizer"], DType::kF32);
    shape.recompute = mode;
    Engine engine(device_, *model, shape);
    load_weights(engine.store(), folder);
    const double scale = 1.0 / static_cast<double>(batch.target_count);
    for (int step = 0; step < 3; ++step) {
      const LossTotals totals = engine.micro_step(batch.view(), scale);
      const double loss = expected["losses"][static_cast<std::size_t>(step)];
      EXPECT_NEAR(totals.mean(), loss, (step == 0 ? 1e-5 : 1e-4) * loss) << "step " << step;
      if (step == 0) {
        for (const FileTensor& tensor : model->file_tensors()) {
          if (!model->parameters()[tensor.parameter].trainable) continue;
          EXPECT_LT(relative_distance(file_gradient(engine, tensor), reference("grad.", tensor)), 1e-4) << tensor.name;
        }
      }
      const UpdateResult update = engine.update(expected["optimizer"]["lr"], step + 1);
      EXPECT_FALSE(update.skipped);
      EXPECT_NEAR(update.gradient_norm, expected["grad_norms"][static_cast<std::size_t>(step)].get<double>(),
                  1e-4 * update.gradient_norm);
    }
    const LossTotals last = engine.micro_step(batch.view(), scale);
    EXPECT_NEAR(last.mean(), expected["losses"][3].get<double>(), 1e-4 * last.mean());
    for (const FileTensor& tensor : model->file_tensors()) {
      const auto now = testing::from_bytes(
          DType::kF32, engine.store().rows(tensor.parameter, tensor.first_row, tensor.shape[0], DType::kF32));
      // Adam divides by the gradient's own size: where a gradient is zero but for rounding, as for the keys' biases (a
      // softmax does not see a shift of all scores), the step is rounding too.
      const double tolerance = tensor.name.ends_with("k_proj.bias") ? 1e-2 : 1e-3;
      EXPECT_LT(relative_distance(now, reference("step3.", tensor)), tolerance) << tensor.name;
    }
  }
}

TEST_P(Golden, Logits) {
  const SafetensorsFile io(golden(GetParam()) / "io.safetensors");
  const ModelFolder folder(golden(GetParam()) / "model");
  const auto model = make_model(folder.config(), "config.json");
  const GoldenBatch batch = read_batch(io, *model, folder.config());
  GraphOptions options;
  options.audio_windows = batch.frames > 0 ? batch.rows : 0;
  options.audio_frames = batch.frames;
  options.kind = GraphKind::kLogits;
  options.tokens = batch.rows * batch.seq;
  options.table_length = batch.seq;
  options.logit_rows = options.tokens;
  const ModelGraph built = model->build(options);
  testing::Tensors sources;
  const WeightMap map = match_folder(*model, folder);
  for (const Parameter& parameter : model->parameters())
    sources[parameter.name].resize(static_cast<std::size_t>(parameter.shape.numel()));
  for (const StoredBinding& binding : map.bindings) {
    const Parameter& parameter = model->parameters()[binding.parameter];
    const auto values = testing::from_bytes(DType::kF32, folder.tensor(binding.stored.name).bytes);
    std::copy(values.begin(), values.end(),
              sources[parameter.name].begin() + binding.first_row * (parameter.shape.numel() / parameter.shape[0]));
  }
  const auto put = [&](const char* name, const auto& values) {
    sources[name] = std::vector<double>(values.begin(), values.end());
  };
  put(batch_input::kIds, batch.ids);
  put(batch_input::kPositions, batch.positions);
  put(batch_input::kSeqStart, batch.seq_start);
  put(batch_input::kAudioFeatures, batch.features);
  put(batch_input::kAudioRows, batch.audio_rows);
  for (const BatchConstant& each : model->constants(options))
    sources[each.name] = testing::from_bytes(each.dtype, each.bytes);
  std::vector<double> rows;
  for (std::int64_t i = 0; i < options.tokens; ++i) rows.push_back(static_cast<double>(i));
  sources[batch_input::kRows] = rows;
  const ValueId cos = built.graph.find(Role::kBatch, batch_input::kRopeCos);
  if (cos != kNoValue) {
    std::vector<float> cosines(static_cast<std::size_t>(built.graph.spec(cos).numel())), sines(cosines.size());
    model->fill_tables(batch.seq, cosines, sines);
    put(batch_input::kRopeCos, cosines);
    put(batch_input::kRopeSin, sines);
  }
  const auto logits = testing::run_graph(device_, built.graph, sources).at("out0");
  const auto expected = floats(io, "logits");
  ASSERT_EQ(logits.size(), expected.size());
  double worst = 0;
  const bool masked = model->audio() ? model->audio()->audio_token >= 0 : true;
  const auto mask = masked ? integers(io, "attention_mask") : std::vector<std::int64_t>(logits.size(), 1);
  const std::size_t vocab = static_cast<std::size_t>(model->vocab_size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (mask[i / vocab] != 0)
      worst = std::max(worst, std::abs(logits[i] - expected[i]));  // padding attends padding here
  }
  EXPECT_LT(worst, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(SpeechModels, Golden, ::testing::Values("whisper", "glmasr"),
                         [](const auto& test) { return test.param; });
INSTANTIATE_TEST_SUITE_P(TextModels, Golden,
                         ::testing::Values("llama", "llama_rope3", "qwen2", "qwen3", "glm", "glm4", "gpt2"),
                         [](const auto& test) { return test.param; });

TEST(GoldenBf16, LossAndNormLieInTheNeighbourhood) {
  const std::unique_ptr<Device> owned = testing::test_device();
  Device& device = *owned;
  const Json expected = read_json(golden("qwen2") / "bf16.json");
  const Json settings = read_json(golden("qwen2") / "golden.json");
  const SafetensorsFile io(golden("qwen2") / "io.safetensors");
  const ModelFolder folder(golden("qwen2") / "model");
  const auto model = make_model(folder.config(), "config.json");
  const GoldenBatch batch = read_batch(io);
  Engine engine(device, *model, shape_for(batch, settings["optimizer"], DType::kBF16));
  load_weights(engine.store(), folder);
  const LossTotals totals = engine.micro_step(batch.view(), 1.0 / static_cast<double>(batch.target_count));
  // bf16 keeps 8 bits: the reference itself lies 1e-4 from float32 here.
  EXPECT_NEAR(totals.mean(), expected["loss"].get<double>(), 2e-3);
  const double floor =
      0.01 * expected["grad_norm"].get<double>();  // a small tensor's gradient drowns in the rounding of the others
  for (const FileTensor& tensor : model->file_tensors()) {
    const std::vector<double> reference = floats(io, "grad." + tensor.name);
    const double distance = relative_distance(file_gradient(engine, tensor), reference) * norm(reference);
    EXPECT_LT(distance, 0.03 * std::max(norm(reference), floor)) << tensor.name;
  }
  const UpdateResult update = engine.update(1e-3, 1);
  EXPECT_NEAR(update.gradient_norm, expected["grad_norm"].get<double>(), 0.02);
}

// The models that hear with 16-bit weights and arithmetic, beside the float32 reference.
class Golden16Bit : public ::testing::TestWithParam<std::tuple<std::string, DType>> {};

TEST_P(Golden16Bit, LossAndGradientsLieInTheNeighbourhood) {
  const auto& [name, dtype] = GetParam();
  const std::unique_ptr<Device> device = testing::test_device();
  const Json expected = read_json(golden(name) / "golden.json");
  const SafetensorsFile io(golden(name) / "io.safetensors");
  const ModelFolder folder(golden(name) / "model");
  const auto model = make_model(folder.config(), "config.json");
  const GoldenBatch batch = read_batch(io, *model, folder.config());
  Engine engine(*device, *model, shape_for(batch, expected["optimizer"], dtype));
  load_weights(engine.store(), folder);
  const LossTotals totals = engine.micro_step(batch.view(), 1.0 / static_cast<double>(batch.target_count));
  const bool f16 = dtype == DType::kF16;
  EXPECT_NEAR(totals.mean(), expected["losses"][0].get<double>(), f16 ? 1e-3 : 5e-3);
  const double whole = expected["grad_norms"][0];
  const auto names = names_in(io, *model);
  for (const FileTensor& tensor : model->file_tensors()) {
    if (!model->parameters()[tensor.parameter].trainable) continue;
    const std::vector<double> reference = floats(io, "grad." + names.at(tensor.name));
    const double distance = relative_distance(file_gradient(engine, tensor), reference) * norm(reference);
    EXPECT_LT(distance, (f16 ? 0.01 : 0.05) * std::max(norm(reference), 0.01 * whole)) << tensor.name;
  }
  EXPECT_NEAR(engine.update(1e-3, 1).gradient_norm, whole, (f16 ? 2e-3 : 1e-2) * whole);
}

INSTANTIATE_TEST_SUITE_P(SpeechModels, Golden16Bit,
                         ::testing::Combine(::testing::Values("whisper", "glmasr"),
                                            ::testing::Values(DType::kBF16, DType::kF16)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::string(name_of(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace convoy
