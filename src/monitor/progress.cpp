#include "monitor/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace convoy {

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e10) return "unknown time";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t minutes = whole / 60, hours = minutes / 60, days = hours / 24;
  if (minutes == 0) return fmt::format("{}s", whole);
  if (hours == 0) return fmt::format("{}m {:02}s", minutes, whole % 60);
  if (days == 0) return fmt::format("{}h {:02}m", hours, minutes % 60);
  return fmt::format("{}d {}h", days, hours % 24);
}

std::string short_number(double value) {
  static constexpr std::array<std::pair<double, char>, 3> kUnits = {{{1e9, 'G'}, {1e6, 'M'}, {1e3, 'k'}}};
  for (const auto& [unit, letter] : kUnits) {
    if (std::abs(value) < 0.9995 * unit) continue;
    const double scaled = value / unit;
    return fmt::format("{:.{}f}{}", scaled, std::abs(scaled) < 9.995 ? 2 : std::abs(scaled) < 99.95 ? 1 : 0, letter);
  }
  return fmt::format("{:.0f}", value);
}

std::string memory_text(std::int64_t bytes) {
  static constexpr std::array<std::pair<int, std::string_view>, 4> kUnits = {
      {{40, "TiB"}, {30, "GiB"}, {20, "MiB"}, {10, "KiB"}}};
  for (const auto& [shift, name] : kUnits) {
    if (bytes >= (std::int64_t{1} << shift))
      return fmt::format("{:.1f} {}", static_cast<double>(bytes) / std::ldexp(1.0, shift), name);
  }
  return fmt::format("{} B", bytes);
}

std::string progress_text(const StepReport& report, std::optional<double> seconds_left) {
  std::string text = fmt::format("step {}/{}", report.step, report.total);
  if (report.total > 0) text += fmt::format("  {}%", report.step * 100 / report.total);
  text += fmt::format("  epoch {:.2f}", report.epoch);
  text += std::isnan(report.loss) ? "  loss nan" : fmt::format("  loss {:.4f}", report.loss);
  text += fmt::format("  lr {:.3g}", report.learning_rate);
  if (!std::isnan(report.gradient_norm)) text += fmt::format("  norm {:.3g}", report.gradient_norm);
  if (report.tokens_per_second > 0) text += fmt::format("  {} tok/s", short_number(report.tokens_per_second));
  if (report.flops_per_second > 0) text += fmt::format("  {:.3g} TFLOP/s", report.flops_per_second * 1e-12);
  if (report.share_of_ceiling) text += fmt::format(" ({:.0f}% of the ceiling)", 100 * *report.share_of_ceiling);
  if (report.memory_bytes > 0) text += "  " + memory_text(report.memory_bytes);
  if (!report.gpu.empty()) text += "  " + report.gpu;
  if (seconds_left) text += fmt::format("  {} left", duration_text(*seconds_left));
  return text;
}

bool Progress::is_terminal(std::FILE* out) {
  return isatty(fileno(out)) == 1;
}

int Progress::columns() const {
  if (options_.columns > 0) return options_.columns;
  winsize size{};
  if (ioctl(fileno(options_.out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

void Progress::update(const StepReport& report, double seconds) {
  const auto done_here = static_cast<double>(report.step - options_.first_step);
  std::optional<double> left;
  if (done_here > 0 && report.total >= report.step)
    left = seconds / done_here * static_cast<double>(report.total - report.step);
  line_ = progress_text(report, left);
  if (!options_.terminal) {
    if (report.logged || report.step == report.total) message(line_);
    return;
  }
  if (seconds - last_drawn_ < options_.seconds_between && report.step != report.total) return;
  last_drawn_ = seconds;
  draw();
}

void Progress::draw() {
  // One column stays free: a full line would wrap on some terminals.
  const auto width = static_cast<std::size_t>(std::max(1, columns() - 1));
  fmt::print(options_.out, "\r\x1b[K{}", line_.substr(0, width));
  std::fflush(options_.out);
  drawn_ = true;
}

void Progress::clear() {
  if (drawn_) fmt::print(options_.out, "\r\x1b[K");
}

void Progress::message(const std::string& line) {
  clear();
  fmt::print(options_.out, "{}\n", line);
  if (drawn_) draw();
  std::fflush(options_.out);
}

void Progress::finish() {
  if (!drawn_) return;
  draw();
  fmt::print(options_.out, "\n");
  std::fflush(options_.out);
  drawn_ = false;
}

}  // namespace convoy
