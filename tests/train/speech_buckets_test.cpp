// Buckets of recordings: their shapes, and that a run with them computes what one without does.
#include "train/speech_buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "../audio/recordings.h"
#include "../data/byte_tokenizer.h"
#include "../data/temp_folder.h"
#include "base/error.h"
#include "passes/lifetimes.h"
#include "plan/memory_report.h"
#include "support/test_device.h"
#include "train/engine.h"
#include "train/evaluation.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

constexpr int kRecordings = 9;

const ByteTokenizer& tokenizer() {
  static const ByteTokenizer one({"<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>", "<|user|>",
                                  "<|assistant|>", "<|begin_of_audio|>", "<|end_of_audio|>", "<|pad|>"},
                                 "<|endoftext|>");
  return one;
}

// Whisper and GLM-ASR with windows of four seconds; recordings of 0.3 … 3.5 s.
class SpeechBucketsTest : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  SpeechBucketsTest() {
    std::string lines;
    for (int i = 0; i < kRecordings; ++i) {
      const std::string name = "tone" + std::to_string(i) + ".wav";
      folder_.write(name, recording({.seconds = 0.3 + 0.4 * i, .hertz = 200.0 + 60 * i}));
      lines +=
          R"({"audio": ")" + name + R"(", "text": ")" + std::string(static_cast<std::size_t>(2 + 3 * i), 'a') + "\"}\n";
    }
    config_.train_files = {folder_.write("m.jsonl", lines)};
    config_.duration_buckets = {"4"};
    config_.batch_seconds = 8;
    const auto [family, masked] = GetParam();
    const Json whisper = {{"model_type", "whisper"},
                          {"vocab_size", 300},
                          {"d_model", 32},
                          {"num_mel_bins", 8},
                          {"encoder_layers", 2},
                          {"decoder_layers", 2},
                          {"encoder_ffn_dim", 48},
                          {"decoder_ffn_dim", 48},
                          {"encoder_attention_heads", 4},
                          {"decoder_attention_heads", 4},
                          {"max_source_positions", 200},
                          {"mask_audio_padding", masked}};
    const Json glm = {{"model_type", "glmasr"},
                      {"audio_token_id", tokenizer().token_to_id("<|pad|>").value()},
                      {"mask_audio_padding", masked},
                      {"text_config",
                       {{"model_type", "llama"},
                        {"vocab_size", 300},
                        {"hidden_size", 32},
                        {"intermediate_size", 48},
                        {"num_hidden_layers", 2},
                        {"num_attention_heads", 4},
                        {"num_key_value_heads", 2},
                        {"head_dim", 8},
                        {"max_position_embeddings", 256}}},
                      {"audio_config",
                       {{"hidden_size", 32},
                        {"intermediate_size", 48},
                        {"num_hidden_layers", 2},
                        {"num_attention_heads", 4},
                        {"num_mel_bins", 8},
                        {"max_position_embeddings", 200}}}};
    source_.config = std::make_unique<Json>(family == "whisper" ? whisper : glm);
    source_.where = "test";
    source_.model = make_model(*source_.config, "test");
    shape_.rows = kRecordings;
    shape_.eval_rows = kRecordings;
    shape_.seq = 192;
    shape_.audio_windows = 1;
    shape_.audio_frames = source_.model->audio()->frames;
    shape_.dtype = DType::kF64;
    shape_.deterministic = false;
    shape_.loss.chunk_rows = 64;
    data_ = open_speech(config_, "train_files", tokenizer(), source_, shape_);
  }
  SpeechBuckets choose() const {
    return choose_buckets(config_, *source_.model->audio(), shape_, data_.source->sizes());
  }
  // All micro-batches of an epoch.
  std::vector<Batch> batches(const std::optional<SpeechBuckets>& buckets) const {
    LoaderOptions options;
    options.rows = kRecordings;
    options.epochs = 1;
    options.complete = [&](Batch& batch) { data_.source->complete(batch); };
    if (buckets) {
      options.buckets = buckets->rows(data_.source->sizes());
      options.complete = [&](Batch& batch) {
        const BatchShape& shape = buckets->shapes.at(static_cast<std::size_t>(batch.bucket));
        data_.source->complete(batch, {shape.audio_windows, shape.audio_frames});
      };
    }
    RowOptions rows;
    rows.row_length = shape_.seq;
    rows.mode = RowMode::kPad;
    Loader loader(data_.tokens, all_documents(kRecordings), rows, options);
    std::vector<Batch> all;
    while (std::optional<Step> step = loader.next()) {
      for (Batch& batch : step->micro_batches) all.push_back(std::move(batch));
    }
    return all;
  }
  struct Computed {
    LossTotals trained, evaluated;
    std::vector<std::vector<double>> gradients;  // of every parameter that has one
  };
  Computed compute(const std::optional<SpeechBuckets>& buckets) const {
    const std::vector<Batch> all = batches(buckets);
    TrainShape shape = shape_;
    set_buckets(buckets, shape);
    shape.accumulation = static_cast<std::int64_t>(all.size());
    const std::unique_ptr<Device> device = testing::test_device();
    Engine engine(*device, *source_.model, shape);
    engine.store().initialize(3);
    Computed made;
    for (const Batch& batch : all) made.evaluated += engine.evaluate(view(batch));
    for (const Batch& batch : all) made.trained += engine.micro_step(view(batch), 0.01);
    for (std::size_t p = 0; p < source_.model->parameters().size(); ++p) {
      if (!source_.model->parameters()[p].trainable) continue;
      const std::vector<std::byte> bytes = engine.gradient(p);
      made.gradients.emplace_back();
      for (std::size_t i = 0; i < bytes.size(); i += sizeof(double))
        made.gradients.back().push_back(load_float(DType::kF64, bytes.data() + i));
    }
    return made;
  }

  TempFolder folder_;
  RunConfig config_;
  ModelSource source_;
  TrainShape shape_;
  SpeechData data_;
};

TEST_P(SpeechBucketsTest, LossAndGradientsAreThoseOfOneShape) {
  const SpeechBuckets buckets = choose();
  ASSERT_GE(buckets.shapes.size(), 3U);
  const Computed one = compute(std::nullopt), many = compute(buckets);
  EXPECT_GT(one.trained.targets, 50);
  EXPECT_EQ(many.trained.targets, one.trained.targets);
  EXPECT_NEAR(many.trained.loss_sum, one.trained.loss_sum, 1e-9 * one.trained.loss_sum);
  EXPECT_EQ(many.evaluated.targets, one.evaluated.targets);
  EXPECT_NEAR(many.evaluated.loss_sum, one.evaluated.loss_sum, 1e-9 * one.evaluated.loss_sum);
  ASSERT_EQ(many.gradients.size(), one.gradients.size());
  for (std::size_t p = 0; p < one.gradients.size(); ++p) {
    double most = 0, apart = 0;
    for (std::size_t i = 0; i < one.gradients[p].size(); ++i) {
      most = std::max(most, std::abs(one.gradients[p][i]));
      apart = std::max(apart, std::abs(one.gradients[p][i] - many.gradients[p][i]));
    }
    EXPECT_LE(apart, 1e-9 * std::max(most, 1e-3)) << "parameter " << p;
  }
}

TEST_P(SpeechBucketsTest, WindowsAreShorterWherePaddingIsMaskedAlone) {
  const SpeechBuckets buckets = choose();
  const std::int64_t whole = source_.model->audio()->frames;
  std::int64_t before = 0;
  for (const BatchShape& shape : buckets.shapes) {
    EXPECT_EQ(shape.audio_windows, 1);
    if (std::get<1>(GetParam())) {
      EXPECT_LT(shape.audio_frames, whole);
      EXPECT_GT(shape.audio_frames, before);
      before = shape.audio_frames;
    } else {
      EXPECT_EQ(shape.audio_frames, whole);
    }
    EXPECT_EQ(shape.rows, 800 / shape.audio_frames);
    EXPECT_LE(shape.seq, shape_.seq);
  }
  EXPECT_LT(buckets.shapes.front().seq, buckets.shapes.back().seq);
}

// What is heard behind a recording's end counts exactly where padding is not masked.
TEST_P(SpeechBucketsTest, MaskedPaddingIsNotHeard) {
  Batch batch = batches(std::nullopt).front();
  const std::unique_ptr<Device> device = testing::test_device();
  Engine engine(*device, *source_.model, shape_);
  engine.store().initialize(3);
  const double quiet = engine.evaluate(view(batch)).loss_sum;
  const auto floats = static_cast<std::size_t>(shape_.audio_frames * 8);
  for (std::size_t r = 0; r < batch.samples.size(); ++r) {
    const std::int64_t sound = data_.source->sizes()[static_cast<std::size_t>(batch.samples[r])].frames;
    for (std::size_t i = static_cast<std::size_t>(sound * 8); i < floats; ++i)
      batch.audio_features[r * floats + i] += 3;
  }
  const double loud = engine.evaluate(view(batch)).loss_sum;
  if (std::get<1>(GetParam())) {
    EXPECT_EQ(loud, quiet);
  } else {
    EXPECT_NE(loud, quiet);
  }
}

TEST_P(SpeechBucketsTest, PlannedBytesEqualTheHighWaterMark) {
  const SpeechBuckets buckets = choose();
  const std::vector<Batch> all = batches(buckets);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TrainShape shape = shape_;
    shape.dtype = dtype;
    shape.deterministic = true;
    shape.accumulation = static_cast<std::int64_t>(all.size());
    set_buckets(buckets, shape);
    const std::unique_ptr<Device> device = testing::test_device();
    const ProgramSet set = make_programs(*source_.model, shape, *device);
    EXPECT_EQ(device->memory().peak, 0U);
    Engine engine(*device, *source_.model, shape);
    engine.store().initialize(5);
    for (const Batch& batch : all) engine.micro_step(view(batch), 0.01);
    engine.update(1e-3, 1);
    for (const Batch& batch : all) engine.evaluate(view(batch));
    EXPECT_EQ(device->memory().peak, memory_report(set.sizes, set.activation_lower_bound).total);
    std::size_t touched = engine.eval_high_water();
    for (std::size_t bucket = 0; bucket < shape.buckets(); ++bucket)
      touched = std::max(touched, engine.micro_executor(bucket).high_water(Role::kActivation));
    EXPECT_EQ(aligned(touched), set.sizes.bytes[static_cast<std::size_t>(Role::kActivation)]);
  }
}

TEST_P(SpeechBucketsTest, BoundsMayBeGiven) {
  config_.duration_buckets = {"0.9,2", "3.9"};
  const SpeechBuckets buckets = choose();
  ASSERT_EQ(buckets.shapes.size(), 3U);
  for (const auto& [b, bound] : {std::pair{0, 90}, std::pair{1, 200}, std::pair{2, 390}}) {
    EXPECT_GE(buckets.frames[static_cast<std::size_t>(b)], bound);
    EXPECT_LE(buckets.frames[static_cast<std::size_t>(b)], bound + 12);
  }
  const auto rows = buckets.rows(data_.source->sizes());
  for (std::size_t i = 0; i < kRecordings; ++i) {
    const std::size_t bucket = buckets.bucket_of(data_.source->sizes()[i]);
    EXPECT_EQ(bucket, i < 2 ? 0U : i < 5 ? 1U : 2U) << i;
    EXPECT_LE(rows->lengths[i], buckets.frames[bucket]);
  }
  const std::vector<DocumentId> documents = all_documents(kRecordings);
  const std::string text = buckets.text(data_.source->sizes(), documents, std::vector<std::int64_t>{1, 1, 1}, 1);
  EXPECT_THAT(text, HasSubstr("3 duration buckets: "));
  EXPECT_THAT(text, HasSubstr("without buckets 52.5 % and"));  // 17.1 s of 36 s
}

TEST_P(SpeechBucketsTest, ASampleWithMuchTextGoesToALongerBucket) {
  config_.duration_buckets = {"1,2,3.9"};
  std::vector<SpeechSize> sizes(60, {90, 90, 30});
  sizes.push_back({90, 90, 100});
  sizes.push_back({150, 150, 60});
  sizes.push_back({300, 300, 120});
  const SpeechBuckets buckets = choose_buckets(config_, *source_.model->audio(), shape_, sizes);
  ASSERT_EQ(buckets.shapes.size(), 3U);
  EXPECT_EQ(buckets.shapes[0].seq, 32);
  EXPECT_EQ(buckets.shapes[1].seq, 64);
  EXPECT_EQ(buckets.shapes[2].seq, 120);
  EXPECT_EQ(buckets.bucket_of(sizes[60]), 2U);
  EXPECT_GT(buckets.rows(sizes)->lengths[60], buckets.frames[1]);
}

TEST_P(SpeechBucketsTest, RefusesWhatMakesNoSense) {
  const auto failure = [&](std::vector<std::string> given, double seconds = 8) -> std::string {
    config_.duration_buckets = std::move(given);
    config_.batch_seconds = seconds;
    try {
      choose();
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::kUsage);
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(failure({"few"}), HasSubstr("'few' is no number"));
  EXPECT_THAT(failure({"2", "1"}), HasSubstr("1 is not above 2"));
  EXPECT_THAT(failure({"0"}), HasSubstr("not above 0"));
  EXPECT_THAT(failure({"2.5"}), HasSubstr("no number of buckets"));
  EXPECT_THAT(failure({"1", "2"}), HasSubstr("longer than the last of duration_buckets"));
  EXPECT_THAT(failure({"4"}, 0.2), HasSubstr("batch_seconds 0.2 is less than a row"));
}

INSTANTIATE_TEST_SUITE_P(Models, SpeechBucketsTest,
                         ::testing::Combine(::testing::Values("whisper", "glmasr"), ::testing::Bool()),
                         [](const auto& test) {
                           return std::get<0>(test.param) + (std::get<1>(test.param) ? "_masked" : "");
                         });

}  // namespace
}  // namespace convoy
