#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"

namespace convoy {

Json parse_json(std::string_view text, const std::string& name) {
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& failure) {
    const std::size_t end = std::min<std::size_t>(failure.byte == 0 ? 0 : failure.byte - 1, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    const std::size_t newline = text.substr(0, end).rfind('\n');
    const std::size_t column = newline == std::string_view::npos ? end + 1 : end - newline;
    std::string reason = failure.what();
    if (const std::size_t cut = reason.rfind(": "); cut != std::string::npos) reason = reason.substr(cut + 2);
    throw usage_error(fmt::format("not valid JSON: {}", reason)).at(fmt::format("{}:{}:{}", name, line, column));
  } catch (const Json::exception& failure) {  // such as a number beyond the range of a double
    std::string reason = failure.what();
    if (const std::size_t cut = reason.find("] "); cut != std::string::npos) reason = reason.substr(cut + 2);
    throw usage_error(fmt::format("not valid JSON: {}", reason)).at(name);
  }
}

Json read_json(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

std::string dump_json(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace convoy
