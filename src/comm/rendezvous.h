// A key-value store over HTTP through which the ranks of a job find one another. Every request carries the job's token;
// a stranger who reaches the port can neither read nor write.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace convoy {

class RendezvousServer {
 public:
  // Listens on all addresses. Port 0 takes a free one. Throws a usage error when the port is taken.
  RendezvousServer(int port, const std::string& token, int ranks = 8);
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;
  int port() const;
  // The address that last asked with another token, if any did.
  std::optional<std::string> refused() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Errors are of status peer-lost: the store cannot be reached, refuses the token, or a key does not come in time.
class RendezvousClient {
 public:
  RendezvousClient(const std::string& address, int port, const std::string& token);
  ~RendezvousClient();
  RendezvousClient(const RendezvousClient&) = delete;
  RendezvousClient& operator=(const RendezvousClient&) = delete;

  // Keys are at most 256 bytes, values 1 MiB.
  void set(const std::string& key, const std::string& value);
  std::optional<std::string> get(const std::string& key);
  // Waits until the key is there.
  std::string wait(const std::string& key, double timeout_seconds);
  // Adds to a counter (0 at first) and returns its new value.
  std::int64_t add(const std::string& key, std::int64_t amount);
  // Tries until the store answers; throws after the timeout.
  void wait_for_server(double timeout_seconds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The own address of this host on the way to `address`.
std::string address_towards(const std::string& address, int port);

}  // namespace convoy
