#include "monitor/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/error.h"

namespace convoy {
namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  constexpr std::uint32_t kPolynomial = 0x82f63b78u;  // 0x1edc6f41, bits reversed
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1u) != 0 ? kPolynomial : 0u);
    table[i] = value;
  }
  return table;
}

template <typename T>
void append_fixed(std::string& out, T value) {
  for (std::size_t byte = 0; byte < sizeof(T); ++byte) out += static_cast<char>((value >> (8 * byte)) & 0xffu);
}

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7fu) | 0x80u);
  out += static_cast<char>(value);
}

enum WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_key(std::string& out, std::uint32_t field, WireType type) {
  append_varint(out, (field << 3) | type);
}

void append_bytes(std::string& out, std::uint32_t field, const std::string& bytes) {
  append_key(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

std::string event_head(double wall_time, std::int64_t step) {
  std::string event;
  append_key(event, 1, kFixed64);
  append_fixed(event, std::bit_cast<std::uint64_t>(wall_time));
  append_key(event, 2, kVarint);
  append_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "host";
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t crc = 0xffffffffu;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint32_t>(byte)) & 0xffu];
  return ~crc;
}

std::uint32_t masked_crc32c(std::span<const std::byte> bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

EventWriter::EventWriter(const std::filesystem::path& folder) {
  static std::atomic<int> count = 0;
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw storage_error("cannot make the folder of event files: " + failure.message()).at(folder.string());
  path_ = folder / fmt::format("events.out.tfevents.{}.{}.{}.{}", static_cast<std::int64_t>(now()), host_name(),
                               getpid(), count++);
  file_.reset(std::fopen(path_.c_str(), "wb"));
  if (!file_)
    throw storage_error(fmt::format("cannot open the event file: {}", std::strerror(errno))).at(path_.string());
  std::string event = event_head(now(), 0);
  append_bytes(event, 3, "brain.Event:2");
  write_event(event);
}

// A TFRecord: length, its masked CRC, the bytes, their masked CRC.
void EventWriter::write_event(const std::string& event) {
  std::string record;
  append_fixed(record, static_cast<std::uint64_t>(event.size()));
  append_fixed(record, masked_crc32c(bytes_of(record)));
  record += event;
  append_fixed(record, masked_crc32c(bytes_of(event)));
  if (std::fwrite(record.data(), 1, record.size(), file_.get()) != record.size() || std::fflush(file_.get()) != 0)
    throw storage_error(fmt::format("cannot write the event file: {}", std::strerror(errno))).at(path_.string());
}

void EventWriter::scalar(const std::string& tag, std::int64_t step, double value, double wall_time) {
  std::string item;
  append_bytes(item, 1, tag);
  append_key(item, 2, kFixed32);
  append_fixed(item, std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  std::string summary;
  append_bytes(summary, 1, item);
  std::string event = event_head(wall_time, step);
  append_bytes(event, 5, summary);
  write_event(event);
}

std::string tensorboard_tag(const std::string& name) {
  for (const char* group : {"eval", "test", "gpu"}) {
    const std::string prefix = std::string(group) + "_";
    if (name.rfind(prefix, 0) == 0) return std::string(group) + "/" + name.substr(prefix.size());
  }
  return "train/" + name;
}

void EventWriter::record(const LogRecord& record, std::int64_t step, double wall_time) {
  for (const auto& [name, value] : record) {
    if (name == "step") continue;
    const std::optional<double> number = number_in(record, name);
    if (number) scalar(tensorboard_tag(name), step, *number, wall_time);
  }
}

}  // namespace convoy
