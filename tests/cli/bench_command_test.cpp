// convoy bench, and runs that find what it wrote.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json.h"
#include "program.h"
#include "tiny_run.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::Result;
using testing::run_convoy;

class Bench : public testing::TinyRun {
 protected:
  Bench() { ::setenv("CONVOY_CACHE_DIR", (folder_ / "kept").c_str(), 1); }
  ~Bench() override { ::unsetenv("CONVOY_CACHE_DIR"); }
  Json first_log(const std::string& run) const { return read_json(run + "/trainer_state.json")["log_history"][0]; }
};

TEST_F(Bench, RunsFindTheCeilingsOfTheirDevice) {
  const Result bench = run_convoy({"bench", "--seconds", "0", "--threads", "2"});
  ASSERT_EQ(bench.status, 0) << bench.output;
  for (const char* row : {"product bf16 forward", "product f16 weight gradient", "product f32 input gradient",
                          "copy within memory", "runs on this device find it"})
    EXPECT_THAT(bench.output, HasSubstr(row));
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "kept")) files.push_back(entry.path());
  ASSERT_EQ(files.size(), 1U);
  const Json ceilings = read_json(files[0]);
  EXPECT_EQ(ceilings["matrix_products"].size(), 12U);
  EXPECT_GT(ceilings["copy_gb_per_second"].get<double>(), 0);
  double best = 0;  // of the run's own dtype
  for (const Json& product : ceilings["matrix_products"])
    if (product["dtype"] == "f32") best = std::max(best, product["tflops"].get<double>());

  const Result run = run_convoy(words(folder_ / "run", {"--max_steps", "1"}));
  ASSERT_EQ(run.status, 0) << run.output;
  const Json log = first_log(folder_ / "run");
  ASSERT_TRUE(log.contains("share_of_ceiling")) << log.dump();
  EXPECT_DOUBLE_EQ(log["share_of_ceiling"].get<double>(), log["flops_per_second"].get<double>() / (best * 1e12));

  const Result without = run_convoy(words(folder_ / "without", {"--max_steps", "1", "--ceilings_file", "none"}));
  ASSERT_EQ(without.status, 0) << without.output;
  EXPECT_FALSE(first_log(folder_ / "without").contains("share_of_ceiling"));

  // A damaged one that nobody asked for is no reason to stop.
  std::ofstream(files[0]) << "{}";
  const Result damaged = run_convoy(words(folder_ / "damaged", {"--max_steps", "1"}));
  ASSERT_EQ(damaged.status, 0) << damaged.output;
  EXPECT_THAT(damaged.output, HasSubstr("no share of the ceiling"));
  EXPECT_FALSE(first_log(folder_ / "damaged").contains("share_of_ceiling"));
}

TEST_F(Bench, WritesWhereItIsTold) {
  const std::string file = folder_ / "new/folder/here.json";
  const Result bench = run_convoy({"bench", "--seconds", "0", "--threads", "1", "--output", file});
  ASSERT_EQ(bench.status, 0) << bench.output;
  EXPECT_THAT(bench.output, HasSubstr("written to " + file + "; runs read it with --ceilings_file"));
  EXPECT_THAT(read_json(file)["card"].get<std::string>(), HasSubstr("1 thread"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "kept"));
}

TEST_F(Bench, Refusals) {
  EXPECT_EQ(run_convoy({"bench", "--device", "tpu"}).status, 2);
  EXPECT_EQ(run_convoy({"bench", "--seconds", "-1"}).status, 2);
  std::ofstream(folder_ / "file") << "x";
  const Result blocked =
      run_convoy({"bench", "--seconds", "0", "--threads", "1", "--output", folder_ / "file/ceilings.json"});
  EXPECT_NE(blocked.status, 0);
  EXPECT_THAT(blocked.output, HasSubstr("cannot create the folder"));
}

}  // namespace
}  // namespace convoy
