// The signals that a supervisor answers to, as a descriptor to poll.
#pragma once

#include <signal.h>

namespace convoy {

// Blocks SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGPIPE for the calling thread, for as long as it lives. The
// process should have no other threads by then. A SIGHUP that the process ignores (nohup) stays ignored.
class SignalDescriptor {
 public:
  SignalDescriptor();
  ~SignalDescriptor();
  SignalDescriptor(const SignalDescriptor&) = delete;
  SignalDescriptor& operator=(const SignalDescriptor&) = delete;
  int fd() const { return fd_; }
  // The next one, or 0.
  int take() const;

 private:
  sigset_t before_{};
  int fd_ = -1;
};

}  // namespace convoy
