#include "monitor/progress.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "monitor_support.h"

namespace convoy {
namespace {

StepReport report(std::int64_t step, bool logged = false) {
  StepReport result;
  result.step = step;
  result.total = 1000;
  result.epoch = 0.36;
  result.loss = 2.31412;
  result.learning_rate = 4.8e-5;
  result.gradient_norm = 0.912;
  result.tokens_per_second = 12345;
  result.memory_bytes = (std::int64_t{16} << 30) / 5;
  result.logged = logged;
  return result;
}

class Output {
 public:
  explicit Output(const std::filesystem::path& folder) : path_(folder / "out"), file_(std::fopen(path_.c_str(), "w")) {}
  ~Output() { std::fclose(file_); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  std::FILE* file() { return file_; }
  std::string text() { return read_file(path_); }

 private:
  std::filesystem::path path_;
  std::FILE* file_;
};

TEST(Progress, Text) {
  EXPECT_EQ(progress_text(report(120), 372.0),
            "step 120/1000  12%  epoch 0.36  loss 2.3141  lr 4.8e-05  norm 0.912  12.3k tok/s  3.2 GiB  6m 12s left");
  EXPECT_EQ(progress_text(StepReport{}, std::nullopt), "step 0/0  epoch 0.00  loss nan  lr 0");
  StepReport with_gpu = report(120);
  with_gpu.flops_per_second = 412.34e12;
  with_gpu.gpu = "gpu 98%  690 W";
  EXPECT_EQ(progress_text(with_gpu, std::nullopt),
            "step 120/1000  12%  epoch 0.36  loss 2.3141  lr 4.8e-05  norm 0.912  12.3k tok/s  412 TFLOP/s  3.2 GiB  "
            "gpu 98%  690 W");
  with_gpu.share_of_ceiling = 0.561;
  EXPECT_NE(progress_text(with_gpu, std::nullopt).find("  412 TFLOP/s (56% of the ceiling)  3.2 GiB"),
            std::string::npos);
}

TEST(Progress, Durations) {
  EXPECT_EQ(duration_text(0), "0s");
  EXPECT_EQ(duration_text(59.6), "1m 00s");
  EXPECT_EQ(duration_text(372), "6m 12s");
  EXPECT_EQ(duration_text(3 * 3600 + 5 * 60), "3h 05m");
  EXPECT_EQ(duration_text(2 * 86400 + 4 * 3600 + 59), "2d 4h");
  EXPECT_EQ(duration_text(-1), "unknown time");
  EXPECT_EQ(duration_text(1e300), "unknown time");
}

TEST(Progress, Numbers) {
  EXPECT_EQ(short_number(812), "812");
  EXPECT_EQ(short_number(999.6), "1.00k");
  EXPECT_EQ(short_number(12345), "12.3k");
  EXPECT_EQ(short_number(123456), "123k");
  EXPECT_EQ(short_number(4.56e6), "4.56M");
  EXPECT_EQ(short_number(2e9), "2.00G");
  EXPECT_EQ(memory_text(812), "812 B");
  EXPECT_EQ(memory_text(1536), "1.5 KiB");
  EXPECT_EQ(memory_text(std::int64_t{3} << 40), "3.0 TiB");
}

TEST(Progress, PlainLinesOnlyWhereALogIsDue) {
  const TemporaryFolder folder;
  Output out(folder.path());
  Progress::Options options;
  options.out = out.file();
  Progress progress(options);
  progress.update(report(1), 1);
  progress.update(report(10, true), 10);
  progress.message("checkpoint saved");
  progress.update(report(1000), 1000);
  progress.finish();
  EXPECT_EQ(out.text(),
            progress_text(report(10), 990.0) + "\ncheckpoint saved\n" + progress_text(report(1000), 0.0) + "\n");
}

TEST(Progress, TerminalLineUpdatesCalmly) {
  const TemporaryFolder folder;
  Output out(folder.path());
  Progress::Options options;
  options.out = out.file();
  options.terminal = true;
  options.columns = 21;
  Progress progress(options);
  progress.update(report(1), 1.0);
  progress.update(report(2), 1.05);  // too soon after the last
  progress.update(report(3), 1.2);
  progress.message("saved");
  progress.finish();
  progress.finish();
  EXPECT_EQ(out.text(),
            "\r\x1b[Kstep 1/1000  0%  epo\r\x1b[Kstep 3/1000  0%  epo\r\x1b[Ksaved\n"
            "\r\x1b[Kstep 3/1000  0%  epo\r\x1b[Kstep 3/1000  0%  epo\n");
}

TEST(Progress, TimeLeftCountsStepsOfThisProcess) {
  const TemporaryFolder folder;
  Output out(folder.path());
  Progress::Options options;
  options.out = out.file();
  options.first_step = 900;
  Progress progress(options);
  progress.update(report(950, true), 50);
  EXPECT_NE(out.text().find("  50s left"), std::string::npos) << out.text();
  EXPECT_FALSE(Progress::is_terminal(out.file()));
}

}  // namespace
}  // namespace convoy
