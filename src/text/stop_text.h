// Ends a text at the first of several strings, while it is still coming.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace convoy {

class StopText {
 public:
  // Empty strings are left out.
  explicit StopText(std::vector<std::string> stops);

  // The text that can be shown now: what may be the beginning of a stop string is held back.
  std::string push(std::string_view piece);
  // The text ended before the string; nothing comes after it.
  bool stopped() const { return stopped_; }
  // What was held back, where no stop string came.
  std::string finish();

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace convoy
