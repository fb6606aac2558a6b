// Helpers of this room's tests: a folder that is removed again, and the text of an error.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace convoy {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "convoy_checkpoint_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw storage_error("no temporary folder");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_plain(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

// The whole text of the Error that `body` throws; its status goes to `status`. Fails the test if there is none.
inline std::string error_of(const std::function<void()>& body, Status* status = nullptr) {
  try {
    body();
  } catch (const Error& error) {
    if (status != nullptr) *status = error.status();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

inline std::vector<std::byte> to_bytes(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace convoy
