#include "checkpoint/checkpoint_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/random.h"
#include "checkpoint/checkpoint_manifest.h"
#include "test_files.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

fs::path save(CheckpointStore& store, std::int64_t step, const std::string& weights = "weights") {
  CheckpointWriter writer = store.begin(step);
  writer.add_text("model.safetensors", weights);
  writer.add_text("training_state.json", std::to_string(step));
  return writer.commit();
}

std::vector<std::int64_t> steps(const CheckpointStore& store) {
  std::vector<std::int64_t> numbers;
  for (const CheckpointInfo& info : store.list()) numbers.push_back(info.step);
  return numbers;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(CheckpointStore, CommitsAllKindsOfFiles) {
  const TemporaryFolder run;
  write_plain(run / "source.txt", "copied");
  CheckpointStore store(run / "out");
  EXPECT_THAT(store.list(), IsEmpty());
  CheckpointWriter writer = store.begin(7, 1000);
  EXPECT_THAT(writer.folder().filename().string(), testing::StartsWith("checkpoint-7.tmp-"));
  writer.add_text("a.json", "{}");
  writer.add_copy("sub/deep/b.txt", run / "source.txt");
  auto stream = writer.stream("c.bin");
  stream->write("one ");
  stream->write("two");
  writer.record(stream->close());
  EXPECT_THAT(store.list(), IsEmpty());
  EXPECT_EQ(store.newest_whole(), std::nullopt);
  const fs::path folder = writer.commit();
  EXPECT_EQ(folder, run / "out" / "checkpoint-7");
  EXPECT_THAT(names_in(run / "out"), ElementsAre("checkpoint-7"));
  EXPECT_EQ(read_file(folder / "c.bin"), "one two");
  EXPECT_EQ(read_file(folder / "sub/deep/b.txt"), "copied");
  EXPECT_THAT(CheckpointStore::verify(folder), IsEmpty());
  write_plain(folder / "notes of the user.txt", "ignored");
  EXPECT_THAT(CheckpointStore::verify(folder), IsEmpty());
  EXPECT_EQ(store.newest_whole()->step, 7);
}

TEST(CheckpointStore, ReplacesAnExistingCheckpoint) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  save(store, 5, "old weights");
  write_plain(run / "checkpoint-5/of the old one", "x");
  const fs::path folder = save(store, 5, "new");
  EXPECT_EQ(read_file(folder / "model.safetensors"), "new");
  EXPECT_THAT(names_in(run.path()), ElementsAre("checkpoint-5"));
  EXPECT_FALSE(fs::exists(folder / "of the old one"));
  EXPECT_THAT(CheckpointStore::verify(folder), IsEmpty());
}

TEST(CheckpointStore, AnUncommittedOneLeavesNothing) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  {
    CheckpointWriter writer = store.begin(1);
    writer.add_text("a", "x");
  }
  EXPECT_THAT(names_in(run.path()), IsEmpty());
}

TEST(CheckpointStore, RefusesWrongFiles) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  CheckpointWriter writer = store.begin(1);
  writer.add_text("a", "x");
  EXPECT_THAT(error_of([&] { writer.add_text("a", "y"); }), HasSubstr("already has a file 'a'"));
  EXPECT_THAT(error_of([&] { writer.add_text("manifest.json", "y"); }), HasSubstr("already has a file"));
  EXPECT_THAT(error_of([&] { writer.add_text("../a", "y"); }), HasSubstr("not the name of a file inside"));
  EXPECT_THAT(error_of([&] { writer.add_text("/a", "y"); }), HasSubstr("not the name of a file inside"));
  EXPECT_THAT(error_of([&] { writer.add_text("", "y"); }), HasSubstr("not the name of a file inside"));
  EXPECT_THAT(error_of([&] { writer.add_copy("b", run / "none"); }), HasSubstr("cannot open"));
  writer.record({"never written", 3, 0});
  EXPECT_THAT(error_of([&] { writer.commit(); }), HasSubstr("not as it was written"));
}

TEST(CheckpointStore, ListsByNumberAndIgnoresTheRest) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  for (const std::int64_t step : {10, 9, 100}) save(store, step);
  for (const char* name : {"checkpoint-", "checkpoint-x", "checkpoint-5x", "checkpoint--3", "checkpoint-11", "runs"}) {
    fs::create_directories(run / name);
  }
  write_plain(run / "checkpoint-12", "a file");
  EXPECT_THAT(steps(store), ElementsAre(9, 10, 100));
}

TEST(CheckpointStore, ReportsEachKindOfDamage) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  const auto damage = [&](const std::function<void(const fs::path&)>& harm) {
    const fs::path folder = save(store, 3);
    harm(folder);
    return CheckpointStore::verify(folder);
  };
  EXPECT_THAT(damage([](const fs::path& f) { fs::remove(f / "model.safetensors"); }),
              ElementsAre("model.safetensors: missing"));
  EXPECT_THAT(damage([](const fs::path& f) { fs::resize_file(f / "model.safetensors", 3); }),
              ElementsAre("model.safetensors: wrong size: 3 bytes instead of 7"));
  EXPECT_THAT(damage([](const fs::path& f) { write_plain(f / "model.safetensors", "weightz"); }),
              ElementsAre(HasSubstr("model.safetensors: wrong checksum: ")));
  EXPECT_THAT(damage([](const fs::path& f) {
                fs::remove(f / "model.safetensors");
                fs::create_directory(f / "model.safetensors");
              }),
              ElementsAre("model.safetensors: not a readable file"));
  EXPECT_THAT(damage([](const fs::path& f) { fs::remove(f / "manifest.json"); }),
              ElementsAre(HasSubstr("no manifest.json")));
  EXPECT_THAT(damage([](const fs::path& f) { fs::resize_file(f / "manifest.json", 20); }),
              ElementsAre(HasSubstr("the manifest is malformed")));
  EXPECT_THAT(damage([](const fs::path& f) { write_plain(f / "manifest.json", R"({"format_version": 99})"); }),
              ElementsAre(HasSubstr("the checkpoint has format 99")));
  EXPECT_THAT(damage([](const fs::path& f) {
                fs::remove(f / "model.safetensors");
                fs::remove(f / "training_state.json");
              }),
              ElementsAre("model.safetensors: missing", "training_state.json: missing"));
  const fs::path moved = run / "checkpoint-4";
  fs::rename(save(store, 3), moved);
  EXPECT_THAT(CheckpointStore::verify(moved), ElementsAre("manifest.json: written for step 3"));
  EXPECT_THAT(CheckpointStore::verify(run / "none"), ElementsAre(HasSubstr("no manifest.json")));
}

// A flipped bit anywhere in any file is found; in the manifest, unless the meaning stays the same.
TEST(CheckpointStore, FindsEveryFlippedBit) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  const fs::path folder = save(store, 3);
  for (const char* name : {"model.safetensors", "manifest.json"}) {
    const std::string good = read_file(folder / name);
    const std::string meaning = CheckpointManifest::parse(read_file(folder / "manifest.json"), "").to_text();
    for (std::size_t i = 0; i < good.size(); ++i) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
      write_plain(folder / name, bad);
      if (CheckpointStore::verify(folder).empty()) {
        ASSERT_STREQ(name, "manifest.json");
        EXPECT_EQ(CheckpointManifest::parse(bad, "").to_text(), meaning) << i;
      }
    }
    write_plain(folder / name, good);
  }
  EXPECT_THAT(CheckpointStore::verify(folder), IsEmpty());
}

TEST(CheckpointStore, FallsBackToTheNewestWholeOneAndReportsTheRest) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  for (const std::int64_t step : {1, 2, 3, 4}) save(store, step);
  write_plain(run / "checkpoint-4/model.safetensors", "weightz");
  fs::remove(run / "checkpoint-3/model.safetensors");
  std::vector<DamagedCheckpoint> damaged;
  const auto newest = store.newest_whole(&damaged);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, 2);
  ASSERT_EQ(damaged.size(), 2u);
  EXPECT_EQ(damaged[0].folder, run / "checkpoint-4");
  EXPECT_THAT(damaged[0].problems, ElementsAre(HasSubstr("wrong checksum")));
  EXPECT_THAT(damaged[1].problems, ElementsAre("model.safetensors: missing"));
  EXPECT_THAT(steps(store), ElementsAre(1, 2, 4));  // sizes are right, no checksum is read
}

TEST(CheckpointStore, CleansLeftoversButNotLiveSaves) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  write_plain(run / "checkpoint-1.tmp-99-0/model.safetensors", "half");
  write_plain(run / "other.tmp-1/keep", "not ours");
  CheckpointWriter first = store.begin(2);
  EXPECT_FALSE(fs::exists(run / "checkpoint-1.tmp-99-0"));
  EXPECT_TRUE(fs::exists(run / "other.tmp-1/keep"));
  CheckpointWriter second = store.begin(3);
  first.add_text("a", "x");
  second.add_text("a", "y");
  second.commit();
  first.commit();
  EXPECT_THAT(steps(store), ElementsAre(2, 3));
}

TEST(CheckpointStore, PutsBackACheckpointWhoseReplacementWasInterrupted) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  save(store, 8);
  fs::rename(run / "checkpoint-8", run / "checkpoint-8.replaced-1");
  EXPECT_EQ(store.newest_whole()->step, 8);
  fs::copy(run / "checkpoint-8", run / "checkpoint-8.replaced-1", fs::copy_options::recursive);
  save(store, 9);
  EXPECT_THAT(names_in(run.path()), ElementsAre("checkpoint-8", "checkpoint-9"));
}

TEST(CheckpointStore, PrunesAsHuggingFaceDoes) {
  struct Case {
    std::optional<int> limit;
    std::optional<std::int64_t> best;
    std::vector<std::int64_t> left;
  };
  const std::vector<Case> cases = {{std::nullopt, {}, {1, 2, 3, 4}},
                                   {0, {}, {1, 2, 3, 4}},
                                   {-1, 1, {1, 2, 3, 4}},
                                   {2, {}, {3, 4}},
                                   {2, 1, {1, 4}},
                                   {1, 2, {2, 4}},
                                   {1, 4, {4}},
                                   {1, {}, {4}},
                                   {3, 1, {1, 3, 4}},
                                   {3, 3, {2, 3, 4}},
                                   {9, 1, {1, 2, 3, 4}},
                                   {1, 77, {4}}};
  for (const Case& test : cases) {
    const TemporaryFolder run;
    CheckpointStore store(run.path());
    for (const std::int64_t step : {1, 2, 3, 4}) save(store, step);
    const auto removed = store.prune(test.limit, test.best);
    EXPECT_EQ(steps(store), test.left) << test.limit.value_or(-9) << " " << test.best.value_or(-9);
    EXPECT_EQ(removed.size() + test.left.size(), 4u);
    EXPECT_EQ(names_in(run.path()).size(), test.left.size());
  }
}

TEST(CheckpointStore, PruningSparesWhatItCannotJudge) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  for (const std::int64_t step : {1, 2, 3}) save(store, step);
  fs::create_directories(run / "checkpoint-4");  // another program's, or damaged: neither counted nor removed
  fs::remove(run / "checkpoint-3/model.safetensors");
  store.prune(1);
  EXPECT_THAT(names_in(run.path()), ElementsAre("checkpoint-2", "checkpoint-3", "checkpoint-4"));
}

TEST(CheckpointStore, PruningGoesByTimeAfterARestartFromAnEarlierStep) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  save(store, 1000);
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  save(store, 10);
  store.prune(1);
  EXPECT_THAT(steps(store), ElementsAre(10));
}

TEST(CheckpointStore, RefusesADiskThatIsTooSmall) {
  const TemporaryFolder run;
  CheckpointStore store(run.path());
  Status status = Status::kDone;
  const std::string text = error_of([&] { store.begin(1, std::uint64_t{1} << 60); }, &status);
  EXPECT_THAT(text, HasSubstr("not enough space on the disk: 1152921504606846976 bytes (1152921504.61 GB) are needed"));
  EXPECT_THAT(text, HasSubstr("are available"));
  EXPECT_EQ(status, Status::kStorage);
  EXPECT_THAT(names_in(run.path()), IsEmpty());
}

}  // namespace
}  // namespace convoy
