// Reads the reference values of tests/golden.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "train/engine.h"

namespace convoy {

std::filesystem::path golden(const std::string& name);

struct GoldenBatch {
  std::vector<std::int32_t> ids, targets, positions, seq_start;
  std::vector<std::uint64_t> keys;
  std::int64_t rows = 0, seq = 0, target_count = 0;
  // Models that hear: one window of audio for each row.
  std::vector<float> features;
  std::vector<std::int32_t> audio_rows;
  std::int64_t frames = 0;
  BatchView view() const { return {ids, targets, positions, seq_start, keys, features, audio_rows}; }
};

std::vector<std::int64_t> integers(const SafetensorsFile& file, const std::string& name);
std::vector<double> floats(const SafetensorsFile& file, const std::string& name);
// The shift of a causal model: the target at t is label t+1 of the same row. Padding comes after the text.
GoldenBatch read_batch(const SafetensorsFile& io);
GoldenBatch read_batch(const SafetensorsFile& io, std::int64_t rows, std::int64_t seq);
// The same with what the model hears; its text alone for models of text.
GoldenBatch read_batch(const SafetensorsFile& io, const Model& model, const Json& config);
TrainShape shape_for(const GoldenBatch& batch, const Json& settings, DType dtype);

double norm(const std::vector<double>& a);
// |a - b| / |b|.
double relative_distance(const std::vector<double>& a, const std::vector<double>& b);
// A gradient in the file's cut of the parameters.
std::vector<double> file_gradient(const Engine& engine, const FileTensor& tensor);

}  // namespace convoy
