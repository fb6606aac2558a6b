#include "launch/merged_output.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace convoy {
namespace {

constexpr std::chrono::milliseconds kPatience(1000);
constexpr std::size_t kLongestHeld = 1 << 16;

}  // namespace

void MergedOutput::pass(std::string_view text) {
  if (held_.empty()) held_since_ = std::chrono::steady_clock::now();
  held_ += text;
  const std::size_t end = held_.find_last_of("\r\n");
  if (held_.size() > kLongestHeld || open_ || (end != std::string::npos && held_[end] == '\r')) {
    flush();
  } else if (end != std::string::npos) {
    write(std::string_view(held_).substr(0, end + 1));
    open_ = false;
    held_.erase(0, end + 1);
    held_since_ = std::chrono::steady_clock::now();
  }
}

void MergedOutput::line(std::string_view text) {
  // One write, so that other programs on this terminal do not come between either.
  write(fmt::format("{}{}{}\n", open_ ? "\n" : "", redraws_ ? "\r\x1b[K" : "", text));
  open_ = false;
}

void MergedOutput::flush() {
  if (held_.empty()) return;
  write(held_);
  open_ = held_.back() != '\n';
  held_.clear();
}

void MergedOutput::flush_old() {
  if (!held_.empty() && std::chrono::steady_clock::now() - held_since_ >= kPatience) flush();
}

std::optional<std::chrono::milliseconds> MergedOutput::patience() const {
  if (held_.empty()) return std::nullopt;
  const auto waited =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - held_since_);
  return std::max(std::chrono::milliseconds(0), kPatience - waited);
}

void MergedOutput::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd_, text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      pollfd room{fd_, POLLOUT, 0};
      ::poll(&room, 1, -1);
    } else if (n < 0 && errno != EINTR) {
      return;  // nobody listens any more: that is no reason to end the training
    }
  }
}

}  // namespace convoy
