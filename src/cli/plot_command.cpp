// convoy plot LOG.jsonl --output FILE.svg
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "cli/commands.h"
#include "monitor/svg_plot.h"

namespace convoy {
namespace {

struct Arguments {
  std::vector<std::string> logs, keys = {"loss", "eval_loss"}, references;
  std::string output, title = "Loss";
  double smoothing = 0.6;
  bool log_y = false;
};

void add_series(const Arguments& arguments, const std::string& path, Plot& plot) {
  std::istringstream lines(read_file(path));
  std::vector<PlotSeries> series;
  for (const std::string& key : arguments.keys) {
    series.push_back({arguments.logs.size() > 1 ? path + " " + key : key,
                      {},
                      {},
                      key.starts_with("eval") ? 0 : arguments.smoothing});
  }
  std::string line;
  std::int64_t number = 0;
  while (std::getline(lines, line)) {
    ++number;
    if (line.empty()) continue;
    const Json entry = parse_json(line, fmt::format("{} line {}", path, number));
    const auto step = entry.find("step");
    if (step == entry.end() || !step->is_number()) continue;
    for (std::size_t k = 0; k < series.size(); ++k) {
      const auto value = entry.find(arguments.keys[k]);
      if (value == entry.end() || !value->is_number()) continue;
      series[k].x.push_back(step->get<double>());
      series[k].y.push_back(value->get<double>());
    }
  }
  for (PlotSeries& each : series) {
    if (!each.x.empty()) plot.series.push_back(std::move(each));
  }
}

ReferenceLine reference(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  try {
    if (equals != std::string::npos) return {std::stod(text.substr(equals + 1)), text.substr(0, equals)};
  } catch (const std::exception&) {  // falls through to the error below
  }
  throw usage_error(fmt::format("'{}' is not NAME=NUMBER", text)).at("--reference");
}

}  // namespace

int plot_command(const Words& words) {
  Arguments arguments;
  CLI::App app("plot the log of a run as SVG", "plot");
  app.add_option("logs", arguments.logs, "log.jsonl files")->required();
  app.add_option("-o,--output", arguments.output, "the SVG file")->required();
  app.add_option("--keys", arguments.keys, "what to plot")->capture_default_str();
  app.add_option("--reference", arguments.references, "a horizontal line, as NAME=NUMBER");
  app.add_option("--title", arguments.title, "above the plot")->capture_default_str();
  app.add_option("--smoothing", arguments.smoothing, "weight of the past in the running mean")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.999));
  app.add_flag("--log_y,--log-y", arguments.log_y, "a logarithmic y axis");
  if (!parse_words(app, words)) return 0;
  Plot plot;
  plot.title = arguments.title;
  plot.x_label = "step";
  plot.y_label = arguments.keys.size() == 1 ? arguments.keys[0] : "loss (nats per token)";
  plot.log_y = arguments.log_y;
  for (const std::string& log : arguments.logs) add_series(arguments, log, plot);
  if (plot.series.empty())
    throw data_error("nothing to plot: no log has a step with one of these keys").mend("see --keys");
  for (const std::string& text : arguments.references) plot.lines.push_back(reference(text));
  write_file_atomic(arguments.output, svg_text(plot));
  return 0;
}

}  // namespace convoy
