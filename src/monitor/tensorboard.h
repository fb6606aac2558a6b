// TensorBoard event files: TFRecords of Event messages (tensorflow/core/util/event.proto), encoded by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "monitor/log_record.h"

namespace convoy {

// CRC-32C (Castagnoli), and TFRecord's masked form of it.
std::uint32_t crc32c(std::span<const std::byte> bytes);
std::uint32_t masked_crc32c(std::span<const std::byte> bytes);

class EventWriter {
 public:
  // Makes the folder and a file of its own in it: events.out.tfevents.TIME.HOST.PID.N. Storage errors name the file.
  explicit EventWriter(const std::filesystem::path& folder);

  // `wall_time` in seconds since 1970.
  void scalar(const std::string& tag, std::int64_t step, double value, double wall_time);
  // Every number of a log under Hugging Face's tags: `eval_x` is `eval/x`, `test_x` is `test/x`, anything else
  // `train/x`; beside them `gpu_x` is `gpu/x`. `step` itself is left out.
  void record(const LogRecord& record, std::int64_t step, double wall_time);
  const std::filesystem::path& path() const { return path_; }

 private:
  void write_event(const std::string& event);
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, &std::fclose};
};

// The tag of a log's value.
std::string tensorboard_tag(const std::string& name);

}  // namespace convoy
