// Curves as a standalone SVG file.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace convoy {

struct PlotSeries {
  std::string name;
  std::vector<double> x, y;  // points that are not finite leave a gap
  // Above 0 the curve is drawn faintly and its running mean (weight of the past: 0.9 is much) boldly.
  double smoothing = 0;
};

struct ReferenceLine {
  double y = 0;
  std::string label;
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<PlotSeries> series;
  std::vector<ReferenceLine> lines;
  bool log_y = false;  // values of 0 and below leave a gap
  int width = 900, height = 540;
};

std::string svg_text(const Plot& plot);

// Round numbers that cover [low, high] in about `wanted` steps; the first is at most low, the last at least high.
std::vector<double> axis_ticks(double low, double high, int wanted);
// Powers of ten, with 2 and 5 between when there are few.
std::vector<double> log_ticks(double low, double high);

}  // namespace convoy
