// The manifest of a checkpoint: every file's size and checksum. It is written last, so a folder that has one was
// complete when it was written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checked_files.h"

namespace convoy {

struct CheckpointManifest {
  static constexpr int kFormatVersion = 1;
  static constexpr const char* kFileName = "manifest.json";

  std::int64_t step = 0;
  std::int64_t saved_at = 0;  // milliseconds since the epoch
  std::vector<FileDigest> files;

  std::string to_text() const;
  // Throws a data error for a manifest that is malformed, damaged (it carries its own checksum) or of a newer format.
  static CheckpointManifest parse(const std::string& text, const std::string& file);
};

// What is wrong with the files of a checkpoint folder, a line each; empty when it is whole. With `checksums` every byte
// is read. Files that the manifest does not name are ignored. Never throws for a damaged checkpoint.
std::vector<std::string> checkpoint_problems(const std::filesystem::path& folder, bool checksums);

}  // namespace convoy
