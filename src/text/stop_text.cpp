#include "text/stop_text.h"

#include <algorithm>
#include <utility>

namespace convoy {

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, "");
}

std::string StopText::push(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    std::string text = held_.substr(0, first);
    held_.clear();
    return text;
  }
  std::size_t keep = 0;  // the longest end of the text that begins a stop string
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) keep = n;
    }
  }
  std::string text = held_.substr(0, held_.size() - keep);
  held_.erase(0, text.size());
  return text;
}

std::string StopText::finish() {
  return std::exchange(held_, {});
}

}  // namespace convoy
