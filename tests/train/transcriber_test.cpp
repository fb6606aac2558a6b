// Windows, languages and times of transcripts, with a model that says something without sense.
#include "train/transcriber.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "speech_tokens.h"
#include "support/test_device.h"

namespace convoy {
namespace {

using testing::at;
using testing::id;
using testing::tokenizer;

// Windows of one second.
Json config(const std::string& family) {
  if (family == "whisper") {
    return {{"model_type", "whisper"},
            {"vocab_size", 320},
            {"d_model", 32},
            {"num_mel_bins", 8},
            {"encoder_layers", 1},
            {"decoder_layers", 1},
            {"encoder_ffn_dim", 48},
            {"decoder_ffn_dim", 48},
            {"encoder_attention_heads", 4},
            {"pad_token_id", 0},
            {"decoder_attention_heads", 4},
            {"max_source_positions", 50},
            {"max_target_positions", 64}};
  }
  return {{"model_type", "glmasr"},
          {"audio_token_id", id("<|pad|>")},
          {"text_config",
           {{"model_type", "llama"},
            {"vocab_size", 320},
            {"hidden_size", 32},
            {"intermediate_size", 48},
            {"num_hidden_layers", 1},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"head_dim", 8},
            {"max_position_embeddings", 512}}},
          {"audio_config",
           {{"hidden_size", 32},
            {"intermediate_size", 48},
            {"num_hidden_layers", 1},
            {"num_attention_heads", 4},
            {"num_mel_bins", 8},
            {"max_position_embeddings", 200}}}};
}

std::vector<float> tone(double seconds, double hertz) {
  std::vector<float> samples(static_cast<std::size_t>(std::llround(seconds * kSpeechRate)));
  for (std::size_t i = 0; i < samples.size(); ++i)
    samples[i] = static_cast<float>(0.5 * std::sin(6.2831853 * hertz * static_cast<double>(i) / kSpeechRate));
  return samples;
}

void set_weights(ParameterStore& store, const Model& model) {
  store.initialize(3);
  // The output's rows are moved apart, so that something else than one token is said.
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    const Parameter& parameter = model.parameters()[p];
    if (parameter.init_std == 0) continue;
    std::vector<float> values(static_cast<std::size_t>(parameter.shape.numel()));
    initialize(parameter, p, 3, values);
    for (float& value : values) value *= 8;
    store.set_rows(p, 0, DType::kF32, std::as_bytes(std::span(values)));
  }
}

class Transcribing : public ::testing::TestWithParam<std::string> {
 protected:
  std::vector<Transcript> transcribe(const std::vector<Clip>& clips, TranscriberOptions options = {}) {
    options.max_new_tokens = 20;
    const Json json = config(GetParam());
    const auto model = make_model(json, "test");
    Transcriber transcriber(*device_, *model, tokenizer(), json, generation_, "test", options);
    set_weights(transcriber.store(), *model);
    std::vector<Transcript> made(clips.size());
    std::size_t next = 0, done = 0;
    transcriber.transcribe(
        [&]() -> std::optional<Clip> {
          if (next == clips.size()) return std::nullopt;
          return clips[next++];
        },
        [&](std::size_t i, Transcript transcript) {
          made.at(i) = std::move(transcript);
          ++done;
        });
    EXPECT_EQ(done, clips.size());
    counts_ = transcriber.counts();
    return made;
  }
  Json generation_ = Json::object();
  TranscriberCounts counts_;  // of the last call
  const std::unique_ptr<Device> device_ = testing::test_device();
};

TEST_P(Transcribing, LongRecordingsAreHeardWindowByWindow) {
  const double window = GetParam() == "whisper" ? 1 : 4;
  const std::vector<Clip> clips = {{tone(0.4, 300)}, {tone(2.6 * window, 500)}, {tone(window, 700)}};
  TranscriberOptions options;
  options.language = GetParam() == "whisper" ? "en" : "";
  options.batch = 1;
  const auto one = transcribe(clips, options);
  options.batch = 3;
  const auto several = transcribe(clips, options);
  for (std::size_t i = 0; i < clips.size(); ++i) {
    EXPECT_EQ(one[i].text, several[i].text) << i;
    EXPECT_GT(one[i].tokens, 0);
    EXPECT_EQ(one[i].language, options.language);
    EXPECT_DOUBLE_EQ(one[i].seconds, static_cast<double>(clips[i].samples.size()) / kSpeechRate);
    ASSERT_EQ(one[i].segments.size(), several[i].segments.size());
    double last = 0;
    for (const Cue& cue : one[i].segments) {
      EXPECT_GE(cue.start, last);
      EXPECT_LE(cue.end, one[i].seconds + 1e-9);
      EXPECT_DOUBLE_EQ(std::fmod(cue.start, window), 0);
      last = cue.end;
    }
  }
  EXPECT_GE(one[1].segments.size(), 2U);
  if (GetParam() == "glmasr") {  // the whole in one text
    options.windows = 3;
    EXPECT_EQ(transcribe(clips, options)[1].segments.size(), 1U);
  }
}

TEST_P(Transcribing, BeamsGiveATextToo) {
  TranscriberOptions options;
  options.beams = 3;
  const auto made = transcribe({{tone(0.7, 300)}, {tone(1.2, 200)}}, options);
  EXPECT_GT(made[0].tokens + made[1].tokens, 0);
}

TEST_P(Transcribing, ARecordingTooShortForARowOfAudioHasNoText) {
  if (GetParam() != "glmasr") return;
  const auto made = transcribe({{tone(0.02, 300)}, {tone(0.5, 300)}});
  EXPECT_EQ(made[0].text, "");
  EXPECT_GT(made[1].tokens, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, Transcribing, ::testing::Values("whisper", "glmasr"),
                         [](const auto& test) { return test.param; });

class WhisperTranscribing : public Transcribing {};

TEST_P(WhisperTranscribing, TheModelTellsTheLanguageWhereNobodySays) {
  const auto told = transcribe({{tone(0.7, 300)}, {tone(0.7, 300), "zh"}});
  EXPECT_TRUE(told[0].language == "en" || told[0].language == "zh");
  EXPECT_EQ(told[1].language, "zh");
  TranscriberOptions options;
  options.language = told[0].language;
  EXPECT_EQ(transcribe({{tone(0.7, 300)}}, options)[0].text, told[0].text);
  options.language = "none";
  EXPECT_EQ(transcribe({{tone(0.7, 300)}}, options)[0].language, "");
  options.language = "xx";
  EXPECT_THROW(transcribe({{tone(0.7, 300)}}, options), Error);
}

TEST_P(WhisperTranscribing, TimesRiseAndTheWholeIsHeard) {
  TranscriberOptions options;
  options.timestamps = true;
  const auto made = transcribe({{tone(3.3, 300)}, {tone(0.7, 500)}}, options);
  double last = 0;
  for (const Cue& cue : made[0].segments) {
    EXPECT_LE(cue.start, cue.end);
    EXPECT_GE(cue.start, last - 1e-9);
    EXPECT_LE(cue.end, 3.3 + 1e-9);
    last = cue.start;
  }
}

std::vector<std::string> texts(const std::vector<Transcript>& transcripts) {
  std::vector<std::string> all;
  for (const Transcript& each : transcripts) all.push_back(each.text);
  return all;
}

TEST_P(Transcribing, WhatIsDrawnDependsOnTheRecordingAndTheSeedAlone) {
  const double window = GetParam() == "whisper" ? 1 : 4;
  const std::vector<Clip> clips = {{tone(2.3 * window, 500)}, {tone(0.4, 300)}, {tone(window, 700)}};
  TranscriberOptions options;
  options.language = GetParam() == "whisper" ? "en" : "";
  options.fallback.temperatures = {0.7};
  options.scores = true;
  options.batch = 1;
  const auto one = texts(transcribe(clips, options));
  EXPECT_EQ(texts(transcribe(clips, options)), one);
  options.batch = 4;
  options.beams = 2;  // no search where something is drawn
  EXPECT_EQ(texts(transcribe(clips, options)), one);
  EXPECT_EQ(texts(transcribe({clips[2], clips[0]}, options)), (std::vector<std::string>{one[2], one[0]}));
  options.fallback.seed = 43;
  EXPECT_NE(texts(transcribe(clips, options)), one);
  options.fallback.temperatures = {0};
  EXPECT_NE(texts(transcribe(clips, options)), one);
}

TEST_P(Transcribing, ATextThatFailsIsDecodedAgainAtTheNextTemperature) {
  const double window = GetParam() == "whisper" ? 1 : 4;
  const std::vector<Clip> clips = {{tone(2.3 * window, 500)}, {tone(0.4, 300)}};
  TranscriberOptions options;
  options.language = GetParam() == "whisper" ? "en" : "";
  options.scores = true;
  const auto greedy = transcribe(clips, options);
  ASSERT_FALSE(greedy[1].scores.empty());
  const double sure = greedy[1].scores[0].avg_logprob;
  EXPECT_EQ(counts_.windows, 4);
  EXPECT_EQ(counts_.again, 0);
  EXPECT_EQ(greedy[1].scores[0].temperature, 0);
  EXPECT_LT(sure, 0);
  EXPECT_DOUBLE_EQ(greedy[1].scores[0].compression_ratio, compression_ratio(greedy[1].text));

  options.fallback.temperatures = {0, 0.4, 0.9};
  options.fallback.logprob_threshold = sure - 1e-3;
  EXPECT_EQ(transcribe({clips[1]}, options)[0].text, greedy[1].text);
  EXPECT_EQ(counts_.again, 0);
  // Where all fail, the likeliest is taken.
  options.fallback.logprob_threshold = 1;
  const auto failed = transcribe(clips, options);
  EXPECT_EQ(counts_.again, 4);
  for (std::size_t i = 0; i < clips.size(); ++i) {
    ASSERT_EQ(failed[i].scores.size(), failed[i].segments.size());
    for (std::size_t w = 0; w < failed[i].scores.size(); ++w)
      EXPECT_GE(failed[i].scores[w].avg_logprob, greedy[i].scores.at(w).avg_logprob - 1e-3);
  }
  // The greedy text says one thing again and again, what is drawn does not: with the third temperature's numbers.
  options.fallback.logprob_threshold.reset();
  options.fallback.compression_ratio_threshold = greedy[1].scores[0].compression_ratio - 1e-6;
  options.fallback.temperatures = {0, 0, 0.9};
  const auto drawn = transcribe({clips[1]}, options)[0];
  EXPECT_EQ(drawn.scores.at(0).temperature, 0.9);
  EXPECT_LT(drawn.scores[0].compression_ratio, greedy[1].scores[0].compression_ratio);
  options.fallback.compression_ratio_threshold.reset();
  options.fallback.temperatures = {0.9};
  EXPECT_NE(transcribe({clips[1]}, options)[0].text, drawn.text) << "each attempt has random numbers of its own";
  options.fallback.best_of = 4;
  const auto best = transcribe(clips, options);
  options.fallback.best_of = 1;
  const auto first = transcribe(clips, options);
  EXPECT_NE(texts(best), texts(first));
  for (std::size_t i = 0; i < clips.size(); ++i) {
    for (std::size_t w = 0; w < first[i].scores.size(); ++w)
      EXPECT_GE(best[i].scores.at(w).avg_logprob, first[i].scores[w].avg_logprob - 1e-3);
  }
}

// The tokenizers of published English models have the tokens of languages too.
TEST_P(WhisperTranscribing, AModelOfEnglishAloneIsToldNoLanguage) {
  TranscriberOptions options;
  options.language = "none";
  const auto plain = transcribe({{tone(0.7, 300)}}, options);
  generation_ = {{"is_multilingual", false}};
  for (const char* language : {"", "en", "none"}) {
    options.language = language;
    const auto made = transcribe({{tone(0.7, 300), "en"}, {tone(0.7, 300)}}, options);
    EXPECT_EQ(made[0].text, plain[0].text);
    EXPECT_EQ(made[1].text, plain[0].text);
    EXPECT_EQ(made[0].language, "en");
  }
  options.language = "zh";
  EXPECT_THROW(transcribe({{tone(0.7, 300)}}, options), Error);
  options.language = "";
  options.task = "translate";
  EXPECT_THROW(transcribe({{tone(0.7, 300)}}, options), Error);
}

// Asking for silence on the way, or not, the figures are those of the tokens after the prompt.
TEST_P(WhisperTranscribing, TheScoreIsTheMeanOverWhatIsSaid) {
  TranscriberOptions options;
  options.language = "en";
  options.scores = true;
  const Clip clip{tone(0.9, 440)};
  const WindowScore score = transcribe({clip}, options)[0].scores.at(0);

  const Json json = config("whisper");
  const auto model = make_model(json, "test");
  Generator generator(*device_, *model, {DType::kF32, 64, 1, 1, true, 1});
  set_weights(generator.store(), *model);
  const SpeechFeatures heard(model->audio().value(), 1, model->audio()->frames);
  std::vector<float> features(static_cast<std::size_t>(heard.window_floats()));
  heard.write(clip.samples, features);
  const GenerationPrompt prompt{
      {id("<|startoftranscript|>"), id("<|en|>"), id("<|transcribe|>"), id("<|notimestamps|>")}, features};
  const WhisperRules rules(tokenizer(), json, id("<|endoftext|>"), false);
  GenerationOptions how;
  how.max_new_tokens = 20;
  how.stop_tokens = {id("<|endoftext|>")};
  how.sampling.temperature = 0;
  how.sampling.vocab = tokenizer().vocab_size();
  how.score = true;
  how.rule = [&](std::size_t, std::span<const std::int32_t> made, std::span<float> logits) {
    rules.apply({}, made, logits);
  };
  const GeneratedText text = generator.generate_from(std::span(&prompt, 1), how).at(0);
  ASSERT_GT(text.tokens.size(), 2U);
  EXPECT_LT(text.log_probability, -0.01);
  EXPECT_NEAR(score.avg_logprob, text.log_probability / static_cast<double>(text.tokens.size()), 1e-4);
}

TEST_P(WhisperTranscribing, WindowsWithoutSpeechAreLeftOut) {
  const std::vector<Clip> clips = {{tone(2.3, 500), "en"}, {tone(0.4, 300), ""}};
  for (const bool timestamps : {false, true}) {
    TranscriberOptions options;
    options.timestamps = timestamps;
    const auto plain = transcribe(clips, options);
    options.scores = true;
    const auto scored = transcribe(clips, options);
    EXPECT_EQ(texts(scored), texts(plain)) << "what is asked on the way changes nothing";
    for (const Transcript& each : scored) {
      for (const WindowScore& score : each.scores) {
        ASSERT_TRUE(score.no_speech_prob);
        EXPECT_GT(*score.no_speech_prob, 0);
        EXPECT_LT(*score.no_speech_prob, 0.5);
      }
    }
    options.fallback.no_speech_threshold = 0;
    options.fallback.logprob_threshold = -1000;
    EXPECT_EQ(texts(transcribe(clips, options)), texts(plain)) << "a text that the model is sure of is speech";
    EXPECT_EQ(counts_.silent, 0);
    options.fallback.logprob_threshold = 1;
    options.fallback.temperatures = {0, 1};
    for (const Transcript& each : transcribe(clips, options)) {
      EXPECT_EQ(each.text, "");
      EXPECT_TRUE(each.segments.empty());
    }
    EXPECT_EQ(counts_.windows, 4);
    EXPECT_EQ(counts_.silent, 4);
    EXPECT_EQ(counts_.again, 0) << "silence is no failure";
    options.fallback.no_speech_threshold = 0.999;
    transcribe(clips, options);
    EXPECT_EQ(counts_.silent, 0);
  }
}

TEST_P(WhisperTranscribing, EarlierTextLeadsTheNextWindow) {
  const std::vector<Clip> clips = {{tone(2.6, 500)}, {tone(1.7, 300)}};
  for (const bool timestamps : {false, true}) {
    TranscriberOptions options;
    options.language = "en";
    options.timestamps = timestamps;
    options.scores = true;
    const auto plain = transcribe(clips, options);
    options.condition_on_prev = true;
    options.batch = 1;
    const auto led = transcribe(clips, options);
    EXPECT_EQ(led[0].segments.at(0).text, plain[0].segments.at(0).text);
    EXPECT_NE(texts(led), texts(plain));
    options.batch = 2;
    EXPECT_EQ(texts(transcribe(clips, options)), texts(led));
    options.initial_prompt = " a name";
    const auto prompted = transcribe(clips, options);
    EXPECT_NE(prompted[0].segments.at(0).text, plain[0].segments.at(0).text);
    options.condition_on_prev = false;
    const auto first = transcribe(clips, options);
    EXPECT_EQ(first[0].segments.at(0).text, prompted[0].segments.at(0).text);
    if (!timestamps) {
      EXPECT_EQ(first[0].segments.at(1).text, plain[0].segments.at(1).text);
    }
    // What was drawn at more than 0.5 leads nobody.
    options.initial_prompt = "";
    options.fallback.temperatures = {0.7};
    const auto drawn = transcribe(clips, options);
    options.condition_on_prev = true;
    EXPECT_EQ(texts(transcribe(clips, options)), texts(drawn));
  }
}

TEST(Transcribers, WhatAModelHasNoPlaceForIsRefused) {
  const auto device = testing::test_device();
  const auto refused = [&](const std::string& family, const TranscriberOptions& options, const std::string& what) {
    const Json json = config(family);
    const auto model = make_model(json, "test");
    try {
      const Transcriber transcriber(*device, *model, tokenizer(), json, json, "test", options);
      ADD_FAILURE() << what;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  TranscriberOptions options;
  options.fallback.no_speech_threshold = 0.6;
  refused("glmasr", options, "no token for silence");
  options = {};
  options.condition_on_prev = true;
  refused("glmasr", options, "no place for what was said before");
  options = {};
  options.initial_prompt = "a name";
  refused("glmasr", options, "no place for what was said before");
  options = {};
  options.fallback.temperatures = {-1};
  refused("whisper", options, "temperature");
  options.fallback.temperatures = {};
  refused("whisper", options, "temperature");
}

INSTANTIATE_TEST_SUITE_P(Whisper, WhisperTranscribing, ::testing::Values("whisper"));

TEST(Transcripts, WindowsJoinWithSpacesWhereTheScriptHasThem) {
  EXPECT_EQ(join_texts("a cat", "sat"), "a cat sat");
  EXPECT_EQ(join_texts("今天", "下雨"), "今天下雨");
  EXPECT_EQ(join_texts("好。", "yes"), "好。yes");
  EXPECT_EQ(join_texts("", "yes"), "yes");
  EXPECT_EQ(join_texts("안녕", "하세요"), "안녕 하세요");
}

}  // namespace
}  // namespace convoy
