#include "base/cache_folder.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>

namespace convoy {

std::filesystem::path cache_folder() {
  const auto variable = [](const char* name) -> std::filesystem::path {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (std::filesystem::path folder = variable("CONVOY_CACHE_DIR"); !folder.empty()) return folder;
  if (const std::filesystem::path folder = variable("XDG_CACHE_HOME"); !folder.empty()) return folder / "convoy";
  if (const std::filesystem::path home = variable("HOME"); !home.empty()) return home / ".cache" / "convoy";
  return {};
}

std::string file_word(std::string_view name) {
  std::string word(name);
  std::replace_if(
      word.begin(), word.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return word;
}

}  // namespace convoy
