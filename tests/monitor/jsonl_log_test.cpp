#include "monitor/jsonl_log.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/files.h"
#include "monitor_support.h"

namespace convoy {
namespace {

LogRecord at_step(std::int64_t step) {
  return {{"loss", 1.5}, {"step", step}};
}

TEST(JsonlLog, AppendsAfterAnEarlierRun) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "deep" / "log.jsonl";
  JsonlLog(path).write(at_step(1));
  JsonlLog(path).write({{"loss", std::numeric_limits<double>::quiet_NaN()}});
  EXPECT_EQ(read_file(path),
            "{\"event\":\"started\"}\n{\"loss\":1.5,\"step\":1}\n{\"event\":\"started\"}\n{\"loss\":\"NaN\"}\n");
}

TEST(JsonlLog, ResumingCutsLaterEntriesOfTheLastRun) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.jsonl";
  JsonlLog(path).write(at_step(50));
  {
    JsonlLog log(path);
    for (std::int64_t step = 10; step <= 40; step += 10) log.write(at_step(step));
  }
  write_file_atomic(path, read_file(path) + "no json\n{\"step\": 41, \"lo");
  JsonlLog log(path, 20);
  EXPECT_EQ(log.cut_entries(), 3);
  log.write(at_step(30));
  EXPECT_EQ(read_file(path),
            "{\"event\":\"started\"}\n{\"loss\":1.5,\"step\":50}\n{\"event\":\"started\"}\n"
            "{\"loss\":1.5,\"step\":10}\n{\"loss\":1.5,\"step\":20}\nno json\n"
            "{\"event\":\"resumed\",\"step\":20,\"cut\":3}\n{\"loss\":1.5,\"step\":30}\n");
}

TEST(JsonlLog, ResumingEarlierCutsTheNoteOfTheLaterResume) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.jsonl";
  JsonlLog(path).write(at_step(10));
  JsonlLog(path, 10).write(at_step(20));
  const JsonlLog log(path, 5);
  EXPECT_EQ(log.cut_entries(), 3);
  EXPECT_EQ(read_file(path), "{\"event\":\"started\"}\n{\"event\":\"resumed\",\"step\":5,\"cut\":3}\n");
}

TEST(JsonlLog, ResumingWithoutAFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.jsonl";
  const JsonlLog log(path, 5);
  EXPECT_EQ(read_file(path), "{\"event\":\"resumed\",\"step\":5,\"cut\":0}\n");
}

TEST(JsonlLog, ATornLineIsClosedWhenNotResuming) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.jsonl";
  write_file_atomic(path, "{\"step\": 1");
  const JsonlLog log(path);
  EXPECT_EQ(read_file(path), "{\"step\": 1\n{\"event\":\"started\"}\n");
}

TEST(JsonlLog, Errors) {
  const TemporaryFolder folder;
  const std::string text = message_of(Status::kStorage, [] { JsonlLog("/proc/no/log.jsonl"); });
  EXPECT_NE(text.find("cannot make the log's folder"), std::string::npos) << text;
  EXPECT_NE(text.find("/proc/no/log.jsonl"), std::string::npos) << text;
  const std::string other = message_of(Status::kStorage, [] { JsonlLog("/proc/convoy.jsonl"); });
  EXPECT_NE(other.find("cannot open the log: "), std::string::npos) << other;
  const std::string full = message_of(Status::kStorage, [] { JsonlLog("/dev/full"); });
  EXPECT_NE(full.find("cannot write the log: "), std::string::npos) << full;
}

}  // namespace
}  // namespace convoy
