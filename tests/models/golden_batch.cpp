#include "golden_batch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "support/graph_runner.h"

namespace convoy {

std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(CONVOY_TEST_DATA) / name;
}

std::vector<std::int64_t> integers(const SafetensorsFile& file, const std::string& name) {
  const auto found = file.find(name);
  std::vector<std::int64_t> values(found.bytes.size() / 8);
  std::memcpy(values.data(), found.bytes.data(), found.bytes.size());
  return values;
}

std::vector<double> floats(const SafetensorsFile& file, const std::string& name) {
  const auto found = file.find(name);
  return testing::from_bytes(found.spec.dtype, found.bytes);
}

GoldenBatch read_batch(const SafetensorsFile& io) {
  const Shape shape = io.find("input_ids").spec.shape;
  return read_batch(io, shape[0], shape[1]);
}

GoldenBatch read_batch(const SafetensorsFile& io, std::int64_t rows, std::int64_t seq) {
  GoldenBatch batch;
  batch.rows = rows;
  batch.seq = seq;
  const auto ids = integers(io, "input_ids");
  const auto labels = integers(io, "labels");
  for (std::int64_t r = 0; r < batch.rows; ++r) {
    for (std::int64_t t = 0; t < batch.seq; ++t) {
      const auto i = static_cast<std::size_t>(r * batch.seq + t);
      batch.ids.push_back(static_cast<std::int32_t>(ids[i]));
      batch.targets.push_back(t + 1 < batch.seq && labels[i + 1] >= 0 ? static_cast<std::int32_t>(labels[i + 1]) : -1);
      batch.target_count += batch.targets.back() >= 0;
      batch.positions.push_back(static_cast<std::int32_t>(t));
      batch.seq_start.push_back(static_cast<std::int32_t>(r * batch.seq));
      batch.keys.push_back(i);
    }
  }
  return batch;
}

namespace {

// Whisper: the decoder reads the start token and the labels but for the last, and is scored against the labels.
GoldenBatch shifted_labels(const SafetensorsFile& io, const Json& config) {
  GoldenBatch batch;
  const Shape shape = io.find("labels").spec.shape;
  batch.rows = shape[0];
  batch.seq = shape[1];
  const auto labels = integers(io, "labels");
  const auto start = config["decoder_start_token_id"].get<std::int32_t>();
  const auto pad = config["pad_token_id"].get<std::int32_t>();
  for (std::int64_t i = 0; i < batch.rows * batch.seq; ++i) {
    const std::int64_t t = i % batch.seq;
    const auto label = static_cast<std::int32_t>(labels[static_cast<std::size_t>(i)]);
    const auto before = t == 0 ? start : static_cast<std::int32_t>(labels[static_cast<std::size_t>(i) - 1]);
    batch.ids.push_back(before < 0 ? pad : before);
    batch.targets.push_back(label < 0 ? -1 : label);
    batch.target_count += label >= 0;
    batch.positions.push_back(static_cast<std::int32_t>(t));
    batch.seq_start.push_back(static_cast<std::int32_t>(i - t));
    batch.keys.push_back(static_cast<std::uint64_t>(i));
  }
  return batch;
}

}  // namespace

GoldenBatch read_batch(const SafetensorsFile& io, const Model& model, const Json& config) {
  const auto audio = model.audio();
  if (!audio) return read_batch(io);
  GoldenBatch batch = audio->audio_token < 0 ? shifted_labels(io, config) : read_batch(io);
  const Shape shape = io.find("input_features").spec.shape;  // [rows, bins, frames]
  const auto values = floats(io, "input_features");
  batch.frames = shape[2];
  for (std::int64_t r = 0; r < shape[0]; ++r) {
    for (std::int64_t t = 0; t < shape[2]; ++t) {
      for (std::int64_t m = 0; m < shape[1]; ++m)
        batch.features.push_back(
            static_cast<float>(values[static_cast<std::size_t>((r * shape[1] + m) * shape[2] + t)]));
    }
  }
  if (audio->audio_token < 0) return batch;
  const std::int64_t rows_of_window = batch.frames / audio->frames_per_token;
  for (std::int64_t r = 0; r < batch.rows; ++r) {
    std::int64_t next = r * rows_of_window;
    for (std::int64_t t = 0; t < batch.seq; ++t) {
      const bool place = batch.ids[static_cast<std::size_t>(r * batch.seq + t)] == audio->audio_token;
      batch.audio_rows.push_back(place ? static_cast<std::int32_t>(next++) : -1);
    }
  }
  return batch;
}

TrainShape shape_for(const GoldenBatch& batch, const Json& settings, DType dtype) {
  TrainShape shape;
  shape.rows = batch.rows;
  shape.seq = batch.seq;
  shape.dtype = dtype;
  shape.optimizer.beta1 = settings["betas"][0];
  shape.optimizer.beta2 = settings["betas"][1];
  shape.optimizer.eps = settings["eps"];
  shape.weight_decay = settings["weight_decay"];
  shape.decay_bias_norm = true;
  shape.max_grad_norm = settings["max_grad_norm"];
  shape.loss.chunk_rows = 8;
  shape.audio_windows = batch.frames > 0 ? 1 : 0;
  shape.audio_frames = batch.frames;
  return shape;
}

double norm(const std::vector<double>& a) {
  double sum = 0;
  for (double v : a) sum += v * v;
  return std::sqrt(sum);
}

double relative_distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  std::vector<double> difference(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm(difference) / (norm(b) + 1e-12);
}

std::vector<double> file_gradient(const Engine& engine, const FileTensor& tensor) {
  const std::vector<double> whole = testing::from_bytes(DType::kF32, engine.gradient(tensor.parameter));
  const Shape& shape = engine.model().parameters()[tensor.parameter].shape;
  const std::int64_t width = shape.numel() / shape[0];
  const auto begin = whole.begin() + tensor.first_row * width;
  return {begin, begin + tensor.shape.numel()};
}

}  // namespace convoy
