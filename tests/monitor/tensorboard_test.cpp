#include "monitor/tensorboard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/files.h"
#include "monitor_support.h"

namespace convoy {
namespace {

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

struct Decoded {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string version, tag;
  float value = 0;
};

// A small reader of protocol-buffer messages: field numbers with their varints or bytes.
class Message {
 public:
  explicit Message(std::string_view text) : text_(text) {}
  bool next() {
    if (at_ >= text_.size()) return false;
    const std::uint64_t key = varint();
    field = key >> 3;
    switch (key & 7) {
      case 0:
        number = varint();
        break;
      case 1:
        content = take(8);
        break;
      case 2:
        content = take(varint());
        break;
      case 5:
        content = take(4);
        break;
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
        return false;
    }
    return true;
  }
  std::uint64_t field = 0, number = 0;
  std::string_view content;

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(text_.at(at_++));
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    ADD_FAILURE() << "a varint without end";
    return value;
  }
  std::string_view take(std::size_t size) {
    at_ += size;
    return text_.substr(at_ - size, size);
  }
  std::string_view text_;
  std::size_t at_ = 0;
};

template <typename T>
T fixed(std::string_view text) {
  T value{};
  EXPECT_EQ(text.size(), sizeof value);
  std::memcpy(&value, text.data(), sizeof value);
  return value;
}

Decoded decode_event(std::string_view text) {
  Decoded event;
  for (Message message(text); message.next();) {
    if (message.field == 1) event.wall_time = fixed<double>(message.content);
    if (message.field == 2) event.step = static_cast<std::int64_t>(message.number);
    if (message.field == 3) event.version = message.content;
    if (message.field != 5) continue;
    Message summary(message.content);
    EXPECT_TRUE(summary.next());
    EXPECT_EQ(summary.field, 1u);
    for (Message value(summary.content); value.next();) {
      if (value.field == 1) event.tag = value.content;
      if (value.field == 2) event.value = fixed<float>(value.content);
    }
    EXPECT_FALSE(summary.next());
  }
  return event;
}

std::vector<Decoded> decode_file(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  std::vector<Decoded> events;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view head = std::string_view(text).substr(at, 8);
    const auto size = fixed<std::uint64_t>(head);
    EXPECT_EQ(fixed<std::uint32_t>(std::string_view(text).substr(at + 8, 4)), masked_crc32c(bytes(head)));
    const std::string_view body = std::string_view(text).substr(at + 12, size);
    EXPECT_EQ(fixed<std::uint32_t>(std::string_view(text).substr(at + 12 + size, 4)), masked_crc32c(bytes(body)));
    events.push_back(decode_event(body));
    at += 16 + size;
  }
  return events;
}

TEST(TensorBoard, ChecksumsOfKnownBytes) {
  EXPECT_EQ(crc32c(bytes("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(bytes("")), 0u);
  EXPECT_EQ(crc32c(bytes(std::string(32, '\0'))), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(bytes(std::string(32, '\xff'))), 0x62a8ab43u);
  const std::uint32_t crc = 0xe3069283u;
  EXPECT_EQ(masked_crc32c(bytes("123456789")), ((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

TEST(TensorBoard, FileDecodesToWhatWasWritten) {
  const TemporaryFolder folder;
  EventWriter writer(folder.path() / "runs" / "a");
  writer.scalar("train/loss", 300, 2.5, 1700000000.25);
  writer.scalar("train/grad_norm", 1LL << 40, std::numeric_limits<double>::quiet_NaN(), 1);
  writer.record({{"eval_loss", 1.5},
                 {"epoch", 0.5},
                 {"step", std::int64_t{7}},
                 {"test_accuracy", 0.25},
                 {"train_loss", 3.0},
                 {"note", std::string("x")}},
                7, 2);
  const std::vector<Decoded> events = decode_file(writer.path());
  ASSERT_EQ(events.size(), 7u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.6e9);
  EXPECT_EQ(events[1].tag, "train/loss");
  EXPECT_EQ(events[1].step, 300);
  EXPECT_EQ(events[1].value, 2.5F);
  EXPECT_EQ(events[1].wall_time, 1700000000.25);
  EXPECT_EQ(events[2].step, 1LL << 40);
  EXPECT_TRUE(std::isnan(events[2].value));
  EXPECT_EQ(events[3].tag, "eval/loss");
  EXPECT_EQ(events[3].step, 7);
  EXPECT_EQ(events[4].tag, "train/epoch");
  EXPECT_EQ(events[5].tag, "test/accuracy");
  EXPECT_EQ(events[6].tag, "train/train_loss");
}

TEST(TensorBoard, FilesOfOneProcessDiffer) {
  const TemporaryFolder folder;
  const EventWriter first(folder.path()), second(folder.path());
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(first.path().filename().string().rfind("events.out.tfevents.", 0), 0u);
}

TEST(TensorBoard, Errors) {
  const std::string text = message_of(Status::kStorage, [] { EventWriter("/proc/no"); });
  EXPECT_NE(text.find("cannot make the folder of event files"), std::string::npos) << text;
  const std::string other = message_of(Status::kStorage, [] { EventWriter("/proc"); });
  EXPECT_NE(other.find("cannot open the event file: "), std::string::npos) << other;
}

TEST(TensorBoard, TagsOfLogs) {
  EXPECT_EQ(tensorboard_tag("loss"), "train/loss");
  EXPECT_EQ(tensorboard_tag("flops_per_second"), "train/flops_per_second");
  EXPECT_EQ(tensorboard_tag("eval_loss"), "eval/loss");
  EXPECT_EQ(tensorboard_tag("test_loss"), "test/loss");
  EXPECT_EQ(tensorboard_tag("gpu_power_watts_max"), "gpu/power_watts_max");
}

}  // namespace
}  // namespace convoy
