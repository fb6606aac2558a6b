// The run's progress: one line that updates on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>

namespace convoy {

struct StepReport {
  std::int64_t step = 0, total = 0;  // optimizer steps done and in all
  double epoch = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();
  double learning_rate = 0;
  double gradient_norm = std::numeric_limits<double>::quiet_NaN();
  double tokens_per_second = 0;
  std::int64_t memory_bytes = 0;           // 0 = not shown
  double flops_per_second = 0;             // of all ranks; 0 = not shown
  std::optional<double> share_of_ceiling;  // of what the ranks' cards were measured to do
  std::string gpu;                         // see gpu_text; "" = not shown
  bool logged = false;  // a step whose log is due: elsewhere than on a terminal only these are printed
};

// "step 120/1000  12%  epoch 0.36  loss 2.3141  lr 4.8e-05  norm 0.91  12.3k tok/s  3.2 GiB  6m 12s left"; with a GPU
// "…  12.3k tok/s  412 TFLOP/s (56% of the ceiling)  3.2 GiB  gpu 98%  690 W  64C  6m 12s left".
std::string progress_text(const StepReport& report, std::optional<double> seconds_left);
// "45s", "6m 12s", "3h 05m", "2d 4h".
std::string duration_text(double seconds);
// "812", "12.3k", "4.56M".
std::string short_number(double value);
// "812 B", "3.2 GiB".
std::string memory_text(std::int64_t bytes);

class Progress {
 public:
  struct Options {
    std::FILE* out = stdout;
    bool terminal = false;         // see is_terminal
    std::int64_t first_step = 0;   // steps done before this process began (resumed runs)
    double seconds_between = 0.1;  // on a terminal, the least time between two updates
    int columns = 0;               // 0 = ask the terminal
  };
  static bool is_terminal(std::FILE* out);

  explicit Progress(Options options) : options_(options) {}
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `seconds` since training began in this process.
  void update(const StepReport& report, double seconds);
  // A line of its own (an evaluation, a checkpoint), above the progress line.
  void message(const std::string& line);
  // Leaves the last state on its line.
  void finish();

 private:
  void draw();
  void clear();
  int columns() const;

  Options options_;
  std::string line_;
  bool drawn_ = false;
  double last_drawn_ = -1e9;
};

}  // namespace convoy
