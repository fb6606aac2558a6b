// The text behind targets, and sums over a loader.
#include "train/evaluation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "data/source.h"
#include "data/token_cache.h"
#include "support/test_device.h"
#include "train/tiny_model.h"

namespace convoy {
namespace {

std::filesystem::path gpt2() {
  return std::filesystem::path(CONVOY_TEST_DATA) / "tokenizers/gpt2";
}

// One document as it lies in rows of `length`, its targets from the second token on or where `trained` says.
Batch rows_of(const std::vector<TokenId>& ids, std::size_t length, const std::vector<bool>& trained = {}) {
  Batch batch;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    batch.input_ids.push_back(ids[i]);
    const bool target = i + 1 < ids.size() && (trained.empty() || trained[i + 1]);
    batch.targets.push_back(target ? ids[i + 1] : -1);
    batch.seq_start.push_back(static_cast<std::int32_t>(i / length * length));
  }
  return batch;
}

TEST(TargetText, CountsBytesAndWordsOfWhatIsPredicted) {
  const auto tokenizer = load_tokenizer(gpt2());
  // "One" is the first token and not predicted; words are told by white space alone.
  const std::string text = "One small  step\n\nfor a man, 你好 wörld";
  const std::vector<TokenId> ids = tokenizer->encode(text);
  const auto first = tokenizer->token_bytes(ids[0]);
  for (const std::size_t length : {ids.size(), std::size_t{4}, std::size_t{1}}) {
    TargetText counted(*tokenizer);
    counted.add(rows_of(ids, length));
    EXPECT_EQ(counted.bytes(), static_cast<std::int64_t>(text.size() - first.size())) << length;
    EXPECT_EQ(counted.words(), 7) << length << ": a row's end does not cut a word in two";
  }
}

TEST(TargetText, AnAnswerBeginsAWord) {
  const auto tokenizer = load_tokenizer(gpt2());
  std::vector<TokenId> ids = tokenizer->encode("Q:");
  const std::size_t prompt = ids.size();
  const std::vector<TokenId> answer = tokenizer->encode("yes it is");
  ids.insert(ids.end(), answer.begin(), answer.end());
  std::vector<bool> trained(ids.size(), false);
  std::fill(trained.begin() + static_cast<std::ptrdiff_t>(prompt), trained.end(), true);
  TargetText counted(*tokenizer);
  counted.add(rows_of(ids, ids.size(), trained));
  EXPECT_EQ(counted.bytes(), 9);
  EXPECT_EQ(counted.words(), 3);
}

TEST(TargetText, SpecialTokensHaveNoText) {
  const auto tokenizer = load_tokenizer(gpt2());
  const auto end = tokenizer->token_to_id("<|endoftext|>");
  if (!end) GTEST_SKIP() << "this tokenizer has no special token";
  std::vector<TokenId> ids = {*end};
  const std::vector<TokenId> text = tokenizer->encode("Two words");
  ids.insert(ids.end(), text.begin(), text.end());
  ids.push_back(*end);
  TargetText counted(*tokenizer);
  counted.add(rows_of(ids, ids.size()));
  EXPECT_EQ(counted.bytes(), 9);
  EXPECT_EQ(counted.words(), 2);
}

TEST(Evaluation, TheMeanIsOverTargetsHoweverTheRowsAreCut) {
  const auto model = make_model(testing::tiny_config("llama"), "test");
  std::vector<EvaluationSums> all;
  for (const std::int64_t rows : {1, 4, 16}) {
    TrainShape shape;
    shape.training = false;
    shape.seq = 24;
    shape.rows = shape.eval_rows = rows;
    shape.dtype = DType::kF64;
    const std::unique_ptr<Device> device = testing::test_device();
    Engine engine(*device, *model, shape);
    engine.store().initialize(5);
    // Documents of very different lengths, so that a mean of means would be another number.
    std::string bytes;
    TokenWriter writer(
        [&](std::span<const std::byte> more) { bytes.append(reinterpret_cast<const char*>(more.data()), more.size()); },
        97, 1);
    std::int64_t targets = 0;
    for (std::int64_t d = 0; d < 11; ++d) {
      EncodedSample sample;
      for (std::int64_t i = 0; i < 2 + d * d % 37; ++i) sample.append(static_cast<TokenId>((7 * d + 3 * i) % 97), true);
      targets += static_cast<std::int64_t>(sample.ids.size()) - 1;
      writer.add(sample);
    }
    writer.finish({});
    const auto data = TokenData::from_memory(bytes, "test");
    RowOptions row_options;
    row_options.row_length = shape.seq;
    row_options.mode = RowMode::kPad;
    LoaderOptions options = evaluation_options({});
    options.rows = rows;
    Loader loader(data, all_documents(data->documents()), row_options, options);
    all.push_back(evaluate_all(engine, loader, nullptr));
    EXPECT_EQ(all.back().totals.targets, static_cast<double>(targets)) << "split documents lose none";
    EXPECT_EQ(all.back().samples, 11);
  }
  EXPECT_NEAR(all[0].loss(), all[1].loss(), 1e-12);
  EXPECT_NEAR(all[0].loss(), all[2].loss(), 1e-12);
  EXPECT_EQ(all[0].totals.correct, all[2].totals.correct);
}

}  // namespace
}  // namespace convoy
