#include "monitor/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace convoy {
namespace {

// Okabe and Ito's colours, told apart by colour-blind readers too.
constexpr std::array<const char*, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#5d5d5d"};
constexpr double kTop = 48, kRight = 24, kBottom = 56, kLeft = 76;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string tick_text(double value, double step) {
  if (value == 0) return "0";
  const double size = std::max(std::abs(value), std::abs(step));
  if (size >= 1e6 || size < 1e-4) return fmt::format("{:.3g}", value);
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  return fmt::format("{:.{}f}", value, decimals);
}

struct Bounds {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Never empty and never a single point.
  void settle(bool logarithmic) {
    if (!(low <= high)) *this = logarithmic ? Bounds{0.1, 10} : Bounds{0, 1};
    if (low < high) return;
    const double by = logarithmic ? 0 : std::max(std::abs(low) * 0.1, 1e-3);
    low = logarithmic ? low / 2 : low - by;
    high = logarithmic ? high * 2 : high + by;
  }
};

class Drawing {
 public:
  explicit Drawing(const Plot& plot) : plot_(plot) {
    Bounds x, y;
    for (const PlotSeries& series : plot.series) {
      for (std::size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
        if (!shown(series.x[i], series.y[i])) continue;
        x.add(series.x[i]);
        y.add(series.y[i]);
      }
    }
    for (const ReferenceLine& line : plot.lines) {
      if (shown(0, line.y)) y.add(line.y);
    }
    x.settle(false);
    y.settle(plot.log_y);
    x_ticks_ = axis_ticks(x.low, x.high, 8);
    y_ticks_ = plot.log_y ? log_ticks(y.low, y.high) : axis_ticks(y.low, y.high, 6);
    x_ = x;
    y_ = {y_ticks_.front(), y_ticks_.back()};
    if (plot.log_y) y_ = {std::min(y.low, y_.low), std::max(y.high, y_.high)};
  }

  std::string text() {
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n<rect width=\"{0}\" height=\"{1}\" "
        "fill=\"#ffffff\"/>\n<clipPath id=\"area\"><rect x=\"{2:.1f}\" y=\"{3:.1f}\" width=\"{4:.1f}\" "
        "height=\"{5:.1f}\"/></clipPath>\n",
        plot_.width, plot_.height, kLeft, kTop, right() - kLeft, bottom() - kTop);
    titles();
    grid();
    for (std::size_t i = 0; i < plot_.series.size(); ++i) curve(plot_.series[i], kColours[i % kColours.size()]);
    reference_lines();
    legend();
    return out_ + "</svg>\n";
  }

 private:
  double right() const { return plot_.width - kRight; }
  double bottom() const { return plot_.height - kBottom; }
  bool shown(double x, double y) const { return std::isfinite(x) && std::isfinite(y) && (!plot_.log_y || y > 0); }

  double px(double x) const { return kLeft + (x - x_.low) / (x_.high - x_.low) * (right() - kLeft); }
  double py(double y) const {
    const double part =
        plot_.log_y ? std::log(y / y_.low) / std::log(y_.high / y_.low) : (y - y_.low) / (y_.high - y_.low);
    return bottom() - part * (bottom() - kTop);
  }

  void label(double x, double y, const char* anchor, const std::string& text, const char* extra = "") {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y, anchor, extra,
                        escaped(text));
  }

  void line(double x1, double y1, double x2, double y2, const char* style) {
    out_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
  }

  void titles() {
    label(kLeft, 28, "start", plot_.title, "font-size=\"17\" font-weight=\"bold\" fill=\"#222222\"");
    label((kLeft + right()) / 2, plot_.height - 14, "middle", plot_.x_label, "fill=\"#444444\"");
    const double middle = (kTop + bottom()) / 2;
    label(20, middle, "middle", plot_.y_label,
          fmt::format("fill=\"#444444\" transform=\"rotate(-90 20 {:.1f})\"", middle).c_str());
  }

  void grid() {
    const double x_step = x_ticks_.size() > 1 ? x_ticks_[1] - x_ticks_[0] : 1;
    for (const double tick : x_ticks_) {
      if (tick < x_.low - 1e-9 * x_step || tick > x_.high + 1e-9 * x_step) continue;
      line(px(tick), bottom(), px(tick), bottom() + 5, "stroke=\"#888888\"");
      label(px(tick), bottom() + 20, "middle", tick_text(tick, x_step), "fill=\"#444444\"");
    }
    for (std::size_t i = 0; i < y_ticks_.size(); ++i) {
      const double tick = y_ticks_[i];
      const double step = plot_.log_y ? tick : y_ticks_[1] - y_ticks_[0];
      line(kLeft, py(tick), right(), py(tick), "stroke=\"#e4e4e4\"");
      label(kLeft - 9, py(tick) + 4.5, "end", tick_text(tick, step), "fill=\"#444444\"");
    }
    line(kLeft, bottom(), right(), bottom(), "stroke=\"#888888\"");
    line(kLeft, kTop, kLeft, bottom(), "stroke=\"#888888\"");
  }

  // Lowest and highest point of each pixel column, so that a long run gives a small file that looks the same.
  std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& points) const {
    const auto columns = static_cast<std::size_t>(right() - kLeft);
    if (points.size() <= 4 * columns) return points;
    std::vector<std::pair<double, double>> kept;
    for (std::size_t begin = 0; begin < points.size();) {
      const double column = std::floor(points[begin].first);
      std::size_t low = begin, high = begin, end = begin;
      for (; end < points.size() && std::floor(points[end].first) == column; ++end) {
        if (points[end].second > points[low].second) low = end;
        if (points[end].second < points[high].second) high = end;
      }
      kept.push_back(points[std::min(low, high)]);
      if (low != high) kept.push_back(points[std::max(low, high)]);
      begin = end;
    }
    return kept;
  }

  void stroke(const std::vector<std::pair<double, double>>& points, const char* colour, double width, double opacity) {
    if (points.empty()) return;
    if (points.size() == 1) {
      out_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", points[0].first,
                          points[0].second, colour);
      return;
    }
    out_ += fmt::format(
        "<polyline clip-path=\"url(#area)\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-opacity=\"{}\" "
        "stroke-linejoin=\"round\" points=\"",
        colour, width, opacity);
    for (const auto& [x, y] : thinned(points)) out_ += fmt::format("{:.1f},{:.1f} ", x, y);
    out_ += "\"/>\n";
  }

  void strokes(const PlotSeries& series, const std::vector<double>& y, const char* colour, double width,
               double opacity) {
    std::vector<std::pair<double, double>> points;
    for (std::size_t i = 0; i < std::min(series.x.size(), y.size()); ++i) {
      if (shown(series.x[i], y[i])) {
        points.emplace_back(px(series.x[i]), py(y[i]));
        continue;
      }
      stroke(points, colour, width, opacity);
      points.clear();
    }
    stroke(points, colour, width, opacity);
  }

  void curve(const PlotSeries& series, const char* colour) {
    if (series.smoothing <= 0) {
      strokes(series, series.y, colour, 2, 1);
      return;
    }
    strokes(series, series.y, colour, 1, 0.3);
    // The mean is divided by the weight seen so far, so that its beginning is not drawn towards 0.
    std::vector<double> smooth = series.y;
    double mean = 0, weight = 0;
    for (double& value : smooth) {
      if (!std::isfinite(value)) continue;
      mean = series.smoothing * mean + (1 - series.smoothing) * value;
      weight = series.smoothing * weight + (1 - series.smoothing);
      value = mean / weight;
    }
    strokes(series, smooth, colour, 2.2, 1);
  }

  void reference_lines() {
    for (const ReferenceLine& reference : plot_.lines) {
      if (!shown(0, reference.y)) continue;
      const double y = py(reference.y);
      line(kLeft, y, right(), y, "stroke=\"#444444\" stroke-width=\"1.2\" stroke-dasharray=\"6 4\"");
      label(kLeft + 8, y - 5, "start", reference.label,
            "font-size=\"12\" fill=\"#444444\" stroke=\"#ffffff\" stroke-width=\"3\" paint-order=\"stroke\"");
    }
  }

  void legend() {
    std::size_t longest = 0;
    for (const PlotSeries& series : plot_.series) longest = std::max(longest, series.name.size());
    if (plot_.series.empty() || longest == 0) return;
    constexpr double kRow = 20, kCharacter = 7.2;
    const double width = 46 + kCharacter * static_cast<double>(longest);
    const double height = 10 + kRow * static_cast<double>(plot_.series.size());
    const double left = right() - width - 10, top = kTop + 8;
    out_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"4\" fill=\"#ffffff\" "
        "fill-opacity=\"0.95\" stroke=\"#dddddd\"/>\n",
        left, top, width, height);
    for (std::size_t i = 0; i < plot_.series.size(); ++i) {
      const double y = top + 5 + kRow * (static_cast<double>(i) + 0.5);
      line(left + 10, y, left + 32, y,
           fmt::format("stroke=\"{}\" stroke-width=\"2.5\"", kColours[i % kColours.size()]).c_str());
      label(left + 40, y + 4.5, "start", plot_.series[i].name, "fill=\"#222222\"");
    }
  }

  const Plot& plot_;
  Bounds x_, y_;
  std::vector<double> x_ticks_, y_ticks_;
  std::string out_;
};

}  // namespace

std::vector<double> axis_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / std::max(1, wanted);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  for (double i = first; i <= last && ticks.size() < 1000; ++i) ticks.push_back(i * step);
  if (ticks.size() < 2) ticks = {low, high};
  return ticks;
}

std::vector<double> log_ticks(double low, double high) {
  const int first = static_cast<int>(std::floor(std::log10(low) + 1e-9));
  const int last = static_cast<int>(std::ceil(std::log10(high) - 1e-9));
  const int every = std::max(1, (last - first) / 8);
  std::vector<double> ticks;
  for (int exponent = first; exponent <= last; exponent += every) {
    ticks.push_back(std::pow(10.0, exponent));
    if (last - first > 2 || exponent == last) continue;
    ticks.push_back(2 * std::pow(10.0, exponent));
    ticks.push_back(5 * std::pow(10.0, exponent));
  }
  if (last - first > 2) return ticks;
  while (ticks.size() > 2 && ticks[1] <= low) ticks.erase(ticks.begin());
  while (ticks.size() > 2 && ticks[ticks.size() - 2] >= high) ticks.pop_back();
  return ticks;
}

std::string svg_text(const Plot& plot) {
  return Drawing(plot).text();
}

}  // namespace convoy
