// The one error type of Convoy: what is wrong, where, and how to mend it.
#pragma once

#include <exception>
#include <string>

namespace convoy {

// The process's exit status. Below 128 is permanent; 128 and above is worth a retry (see docs/design.md).
enum class Status : int {
  kDone = 0,
  kInternal = 1,    // a defect in Convoy itself
  kUsage = 2,       // usage or configuration
  kData = 3,        // a data file or a sample
  kDoesNotFit = 4,  // not enough memory
  kStorage = 6,     // reading or writing files
  kNumerics = 7,    // a loss or a gradient that is not finite
  kPeerLost = 138,  // another rank died
};

class Error : public std::exception {
 public:
  Error(Status status, std::string what) : status_(status), message_(std::move(what)) { compose(); }

  // Where: a file, "file:line", a configuration key, a sample. Outer callers may add theirs; the innermost stays first.
  Error& at(const std::string& where);
  // How to mend it, as an instruction.
  Error& mend(const std::string& remedy);

  Status status() const { return status_; }
  const std::string& message() const { return message_; }
  const std::string& where() const { return where_; }
  const std::string& remedy() const { return remedy_; }
  // "what [at where]; remedy"
  const char* what() const noexcept override { return full_.c_str(); }

 private:
  void compose();
  Status status_;
  std::string message_, where_, remedy_, full_;
};

inline Error usage_error(std::string what) {
  return {Status::kUsage, std::move(what)};
}
inline Error data_error(std::string what) {
  return {Status::kData, std::move(what)};
}
inline Error storage_error(std::string what) {
  return {Status::kStorage, std::move(what)};
}
inline Error internal_error(std::string what) {
  return {Status::kInternal, std::move(what)};
}
inline Error numerics_error(std::string what) {
  return {Status::kNumerics, std::move(what)};
}

// Throws an internal error (a defect of Convoy, not of its input) when `condition` is false.
inline void check(bool condition, const char* what) {
  if (!condition) throw internal_error(what);
}

}  // namespace convoy
