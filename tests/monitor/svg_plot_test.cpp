#include "monitor/svg_plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace convoy {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(SvgPlot, Ticks) {
  EXPECT_EQ(axis_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(axis_ticks(1, 9.5, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(axis_ticks(0, 1000, 4), (std::vector<double>{0, 250, 500, 750, 1000}));
  EXPECT_EQ(log_ticks(1, 1000), (std::vector<double>{1, 10, 100, 1000}));
  EXPECT_EQ(log_ticks(2.5, 15), (std::vector<double>{2, 5, 10, 20}));
}

TEST(SvgPlot, TicksCoverAnyRange) {
  for (double low : {-1e9, -3.7, -1e-7, 0.0, 1e-7, 2.5, 1e9}) {
    for (double width : {1e-9, 1e-3, 0.7, 33.0, 1e12}) {
      const double high = low + width;
      if (!(high > low) || width < std::abs(low) * 1e-9) continue;
      const std::vector<double> ticks = axis_ticks(low, high, 6);
      ASSERT_GE(ticks.size(), 2u);
      EXPECT_LE(ticks.size(), 10u) << low << " " << high;
      EXPECT_LE(ticks.front(), low + 1e-6 * width);
      EXPECT_GE(ticks.back(), high - 1e-6 * width);
    }
  }
}

TEST(SvgPlot, DrawsEverySeriesAndLine) {
  Plot plot;
  plot.title = "a < b & \"c\"";
  plot.x_label = "step";
  plot.y_label = "loss";
  plot.series = {{"train", {1, 2, 3, 4}, {4, 3, 2, 1}, 0.9}, {"eval", {1, 4}, {3, 2}, 0}};
  plot.lines = {{2.5, "reference 2.5"}};
  const std::string svg = svg_text(plot);
  EXPECT_EQ(svg.rfind("<svg xmlns=\"http://www.w3.org/2000/svg\"", 0), 0u);
  EXPECT_NE(svg.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_EQ(count(svg, "<polyline"), 3u);  // the smoothed series has two
  EXPECT_EQ(count(svg, "stroke-dasharray"), 1u);
  EXPECT_EQ(count(svg, ">reference 2.5<"), 1u);
  EXPECT_EQ(count(svg, ">train<"), 1u);
  EXPECT_EQ(count(svg, ">eval<"), 1u);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

TEST(SvgPlot, GapsAndSinglePoints) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Plot plot;
  plot.series = {{"a", {1, 2, 3, 4, 5, 6}, {1, 2, nan, 3, 4, nan}, 0}};
  EXPECT_EQ(count(svg_text(plot), "<polyline"), 2u);
  plot.series = {{"a", {1}, {2}, 0}};
  EXPECT_EQ(count(svg_text(plot), "<circle"), 1u);
  plot.log_y = true;
  plot.series = {{"a", {1, 2, 3, 4}, {10, 1, -1, 0}, 0}};
  EXPECT_EQ(count(svg_text(plot), "<polyline"), 1u);
  EXPECT_EQ(svg_text(plot).find("nan"), std::string::npos);
  EXPECT_EQ(svg_text(Plot{}).find("nan"), std::string::npos);
}

TEST(SvgPlot, LongRunsGiveSmallFilesWithTheirExtremes) {
  Plot plot;
  PlotSeries series;
  for (int i = 0; i < 200'000; ++i) {
    series.x.push_back(i);
    series.y.push_back(i == 77'777 ? 9.0 : 1.0 + 0.1 * std::sin(i));
  }
  plot.series = {series};
  const std::string svg = svg_text(plot);
  EXPECT_LT(svg.size(), 60'000u);
  const double top = 48, bottom = 540 - 56;
  const double y = bottom - (9.0 - 0.0) / 10.0 * (bottom - top);  // ticks 0, 2, …, 10
  char text[32];
  std::snprintf(text, sizeof text, ",%.1f ", y);
  EXPECT_EQ(count(svg, text), 1u) << text;
}

}  // namespace
}  // namespace convoy
