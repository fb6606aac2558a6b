#include "launch/signal_descriptor.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace convoy {

SignalDescriptor::SignalDescriptor() {
  sigset_t heard;
  sigemptyset(&heard);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGUSR1}) sigaddset(&heard, number);
  struct sigaction hang_up {};
  ::sigaction(SIGHUP, nullptr, &hang_up);
  // A blocked signal would be kept even though it is ignored, and then be taken for one to pass on.
  if (hang_up.sa_handler != SIG_IGN) sigaddset(&heard, SIGHUP);
  sigset_t blocked = heard;
  sigaddset(&blocked, SIGPIPE);  // a reader of the output that went away is no reason to end
  ::sigprocmask(SIG_BLOCK, &blocked, &before_);
  fd_ = ::signalfd(-1, &heard, SFD_NONBLOCK | SFD_CLOEXEC);
  if (fd_ < 0) {
    const int code = errno;
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
    throw storage_error(std::strerror(code)).at("signalfd");
  }
}

SignalDescriptor::~SignalDescriptor() {
  ::close(fd_);
  // One that was blocked and came would otherwise end the process now.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  const timespec at_once{};
  while (::sigtimedwait(&pipe, nullptr, &at_once) > 0) {
  }
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int SignalDescriptor::take() const {
  signalfd_siginfo info{};
  return ::read(fd_, &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace convoy
