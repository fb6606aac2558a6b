// Samples of a choice between endings, and of classification.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "data/encode.h"

namespace convoy {

std::int32_t class_index(const std::vector<std::string>& classes, const std::string& label) {
  const auto named = std::find(classes.begin(), classes.end(), label);
  if (named != classes.end()) return static_cast<std::int32_t>(named - classes.begin());
  std::int32_t number = -1;
  const auto [end, failed] = std::from_chars(label.data(), label.data() + label.size(), number);
  const bool whole = failed == std::errc() && end == label.data() + label.size();
  return whole && number >= 0 && number < static_cast<std::int32_t>(classes.size()) ? number : -1;
}

EncodedSample SampleEncoder::encode_choice(const Sample& sample) const {
  const TaskEncoding& task = settings_.task;
  if (static_cast<std::int64_t>(sample.endings.size()) != task.alternatives) {
    throw data_error(fmt::format("{} endings where there should be {}", sample.endings.size(), task.alternatives))
        .mend("set num_choices to the number of endings, the same for all samples");
  }
  const auto room = static_cast<std::size_t>(task.sequence - 3);
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, task.sequence / 2 - 2));
  const std::vector<TokenId> story = text(sample.text, false);
  EncodedSample encoded;
  for (const std::string& each : sample.endings) {
    std::vector<TokenId> ending = text(each, false);
    if (ending.size() + story.size() > room && ending.size() > most) ending.resize(most);
    if (!encoded.ids.empty()) encoded.parts.push_back(static_cast<std::uint32_t>(encoded.ids.size()));
    encoded.append(task.start, false);
    const std::size_t kept = std::min(story.size(), room - std::min(room, ending.size()));
    encoded.append(std::vector<TokenId>(story.begin(), story.begin() + static_cast<std::ptrdiff_t>(kept)), true);
    encoded.append(task.delimiter, true);
    encoded.append(ending, true);
    encoded.append(task.classify, true);
  }
  encoded.label = sample.right;
  return encoded;
}

EncodedSample SampleEncoder::encode_labelled(const Sample& sample) const {
  const TaskEncoding& task = settings_.task;
  EncodedSample encoded;
  encoded.label = class_index(task.classes, sample.label);
  if (encoded.label < 0) {
    const std::size_t shown = std::min<std::size_t>(task.classes.size(), 8);
    throw data_error(
        fmt::format("the label '{}' is none of the {} classes '{}'{}", sample.label, task.classes.size(),
                    fmt::join(task.classes.begin(), task.classes.begin() + static_cast<std::ptrdiff_t>(shown), "', '"),
                    shown < task.classes.size() ? " …" : ""))
        .mend("name all classes in class_names");
  }
  std::vector<TokenId> ids = text(sample.text, settings_.add_special_tokens);
  if (ids.empty()) throw data_error("the text has no token");
  const auto most = static_cast<std::size_t>(task.sequence);
  if (ids.size() > most) ids.resize(most);
  encoded.append(ids, true);
  return encoded;
}

}  // namespace convoy
