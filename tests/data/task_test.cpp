// Samples of tasks: from tables to batches.
#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "data/loader.h"
#include "data/token_cache.h"
#include "temp_folder.h"

namespace convoy {
namespace {

constexpr const char* kCloze =
    "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,RandomFifthSentenceQuiz1,"
    "RandomFifthSentenceQuiz2,AnswerRightEnding\n"
    "a,A b.,C d.,\"E, f.\",G h.,No.,Yes.,2\n"
    "b,A.,B.,C.,D.,Well.,Ill.,1\n";

class Tasks : public ::testing::Test {
 protected:
  EncodeSettings choice(std::int64_t sequence) const {
    EncodeSettings settings;
    settings.append_eos = false;
    settings.task.kind = TaskEncoding::Kind::kChoice;
    settings.task.sequence = sequence;
    settings.task.start = 256;
    settings.task.delimiter = 257;
    settings.task.classify = 258;
    return settings;
  }
  EncodeSettings classes(std::int64_t sequence, std::vector<std::string> names) const {
    EncodeSettings settings;
    settings.append_eos = false;
    settings.task.kind = TaskEncoding::Kind::kClasses;
    settings.task.sequence = sequence;
    settings.task.classes = std::move(names);
    return settings;
  }
  std::shared_ptr<const TokenData> read(const std::string& name, const std::string& content, SampleKind kind,
                                        const EncodeSettings& settings) {
    SourceOptions options;
    options.paths = {folder_.write(name, content)};
    options.kind = kind;
    return tokenize_to_memory(options, SampleEncoder(tokenizer_, settings));
  }
  std::string text(const TokenData& data, std::int64_t document) const {
    std::vector<TokenId> ids(static_cast<std::size_t>(data.length(document)));
    data.copy(document, 0, data.length(document), ids.data());
    return tokenizer_.decode(ids, false);
  }

  TempFolder folder_;
  ByteTokenizer tokenizer_{{"<s>", "<d>", "<c>"}};
};

TEST_F(Tasks, ChoicesOfEveryForm) {
  const auto cloze = read("cloze.csv", kCloze, SampleKind::kChoice, choice(64));
  ASSERT_EQ(cloze->documents(), 2);
  EXPECT_EQ(text(*cloze, 0), "<s>A b. C d. E, f. G h.<d>No.<c><s>A b. C d. E, f. G h.<d>Yes.<c>");
  EXPECT_EQ(cloze->label(0), 1);
  EXPECT_EQ(cloze->label(1), 0);
  ASSERT_EQ(cloze->parts(0).size(), 1U);
  EXPECT_EQ(cloze->parts(0)[0], 26U);
  const auto same = [&](const std::string& name, const std::string& content) {
    const auto data = read(name, content, SampleKind::kChoice, choice(64));
    EXPECT_EQ(data->label(0), 1) << name;
    EXPECT_EQ(text(*data, 0), "<s>It is.<d>No.<c><s>It is.<d>Yes.<c>") << name;
  };
  same("plain.csv", "story,ending1,ending2,label\nIt is.,No.,Yes.,2\n");
  same("from0.tsv", "label\tcontext\tending0\tending1\n1\tIt is.\tNo.\tYes.\n");
  same("flat.jsonl", R"({"sentence1": "It", "sentence2": "is.", "ending1": "No.", "ending2": "Yes.", "label": 2})");
  same("list.jsonl", R"({"story": "It is.", "endings": ["No.", "Yes."], "label": 1})");
}

TEST_F(Tasks, MalformedChoicesSayWhy) {
  const auto refused = [&](const std::string& content, const std::string& why) {
    try {
      read("bad.csv", content, SampleKind::kChoice, choice(64));
      FAIL() << content;
    } catch (const Error& failure) {
      EXPECT_NE(failure.message().find(why), std::string::npos) << failure.message();
      EXPECT_NE(failure.where().find("bad.csv:2"), std::string::npos) << failure.where();
    }
  };
  refused("story,ending1,label\na,b,1\n", "no endings");
  refused("story,ending1,ending2\na,b,c\n", "no label");
  refused("story,ending1,ending2,label\na,b,c,3\n", "the label '3' is the number of no ending");
  refused("story,ending1,ending2,label\na,b,c,\n", "the label '' is the number of no ending");
  refused("story,ending1,ending2,label\na,b,,1\n", "ending 2 is empty");
  refused("story,ending1,ending2,ending3,label\na,b,c,d,1\n", "3 endings where there should be 2");
}

TEST_F(Tasks, AlternativesFitTheSequence) {
  const std::string story(50, 's'), ending(50, 'e');
  for (const std::int64_t most : {8, 16, 33, 120}) {
    const auto data = read("long.csv", "story,ending1,ending2,label\n" + story + "," + ending + ",x,1\n",
                           SampleKind::kChoice, choice(most));
    const std::int64_t first = data->parts(0)[0];
    EXPECT_EQ(first, std::min<std::int64_t>(most, 103));
    EXPECT_EQ(data->length(0) - first, std::min<std::int64_t>(most, 54));
    EXPECT_EQ(text(*data, 0).substr(0, 4), "<s>s");
  }
}

TEST_F(Tasks, ABatchOfChoices) {
  const auto data = read("cloze.csv", kCloze, SampleKind::kChoice, choice(32));
  RowOptions rows;
  rows.parts = 2;
  rows.row_length = 64;
  rows.mode = RowMode::kPad;
  rows.overlong = Overlong::kTruncate;
  LoaderOptions options;
  options.rows = 3;
  options.shuffle = false;
  Loader loader(data, all_documents(2), rows, options);
  const Step step = *loader.next();
  EXPECT_EQ(step.global_samples, 2);
  const Batch& batch = step.micro_batches[0];
  EXPECT_EQ(batch.head_labels, (std::vector<std::int32_t>{1, 0, -1}));
  EXPECT_EQ(batch.samples, (std::vector<std::int64_t>{0, 1}));
  ASSERT_EQ(batch.head_rows.size(), 6U);
  std::int64_t targets = 0;
  for (const std::int32_t target : batch.targets) targets += target >= 0;
  EXPECT_EQ(targets, batch.target_count);
  EXPECT_EQ(targets, step.global_targets);
  for (std::size_t head = 0; head < 4; ++head) {
    const auto at = static_cast<std::size_t>(batch.head_rows[head]);
    EXPECT_EQ(batch.input_ids[at], 258);
    EXPECT_EQ(batch.targets[at], -1) << "nothing follows the last token of an alternative";
    EXPECT_EQ(batch.targets[at - 1], 258);
    EXPECT_EQ(batch.seq_start[at], static_cast<std::int32_t>(head * 32));
    EXPECT_EQ(batch.positions[at], static_cast<std::int32_t>(at % 32));
    EXPECT_EQ(batch.input_ids[head * 32], 256);
  }
  EXPECT_EQ(batch.head_keys[0], batch.head_keys[1]) << "the alternatives share a mask";
  EXPECT_NE(batch.head_keys[0], batch.head_keys[2]);
}

TEST_F(Tasks, Classes) {
  const auto data = read("c.tsv", "text\tlabel\nx\tbad\nlong text\tgood\nno\t0\n", SampleKind::kLabelled,
                         classes(8, {"bad", "good"}));
  ASSERT_EQ(data->documents(), 3);  // also the one of a single token
  EXPECT_EQ(text(*data, 1), "long tex");
  EXPECT_EQ(data->label(0), 0);
  EXPECT_EQ(data->label(1), 1);
  EXPECT_EQ(data->label(2), 0);
  EXPECT_THROW(read("d.tsv", "text\tlabel\nx\tugly\n", SampleKind::kLabelled, classes(8, {"bad", "good"})), Error);
  EXPECT_THROW(read("e.tsv", "text\tlabel\nx\t2\n", SampleKind::kLabelled, classes(8, {"bad", "good"})), Error);
  EXPECT_EQ(class_index({"1", "0"}, "0"), 1) << "names come before numbers";
}

}  // namespace
}  // namespace convoy
