// Features on disk, so that a second epoch does not decode again: one file for each utterance (about 50 kB a second at
// 128 bins), in 256 folders. Safe to share between threads, processes and hosts; delete it at any time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "audio/log_mel.h"
#include "audio/utterance.h"

namespace convoy {

class FeatureCache {
 public:
  // Makes the folder. Throws a storage error where it cannot be made.
  explicit FeatureCache(std::filesystem::path folder);

  // Where features lie: by the recording's file, its size and time of change, the part, the speed and the settings.
  std::uint64_t key(const Utterance& utterance, double speed, const LogMelConfig& config) const;
  // None where they are not there, or not whole (which is then made anew).
  std::optional<Features> get(std::uint64_t key) const;
  // Throws a storage error, such as when the disk is full.
  void put(std::uint64_t key, const Features& features) const;

 private:
  std::filesystem::path path(std::uint64_t key) const;
  std::filesystem::path folder_;
};

}  // namespace convoy
