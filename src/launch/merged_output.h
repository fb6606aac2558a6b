// The stderr of many processes as one: whole lines, and one process that may redraw its line.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace convoy {

class MergedOutput {
 public:
  // Writes to a descriptor that stays the caller's. `redraws`: a progress line may stand on that terminal, which a line
  // has to wipe first.
  explicit MergedOutput(int fd, bool redraws = false) : fd_(fd), redraws_(redraws) {}

  // Text of the leading process, as it came. An unfinished line is held until it ends, so that no other line falls into
  // it; but one that follows a \r is being redrawn and goes out at once, and any goes out after a second.
  void pass(std::string_view text);
  // A whole line of another process, without its end.
  void line(std::string_view text);
  // Writes what is held if it has waited for long enough, or in any case.
  void flush_old();
  void flush();
  // How long until flush_old() has something to do.
  std::optional<std::chrono::milliseconds> patience() const;

 private:
  void write(std::string_view text);

  int fd_;
  bool redraws_;
  bool open_ = false;  // the last thing written is an unfinished line
  std::string held_;
  std::chrono::steady_clock::time_point held_since_;
};

}  // namespace convoy
