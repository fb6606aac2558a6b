#include "comm/rendezvous.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <httplib.h>
#include <netdb.h>
#include <sys/socket.h>

#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace convoy {
namespace {

constexpr const char* kTokenHeader = "X-Convoy-Token";
constexpr std::size_t kLongestKey = 256;
constexpr std::size_t kLongestValue = std::size_t{1} << 20;

// Takes as long for a nearly right token as for a wrong one.
bool equal_in_constant_time(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  return difference == 0;
}

// Headers lose blanks at their ends and may not hold every byte.
std::string as_header(const std::string& token) {
  std::string text;
  for (const char c : token) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

Error lost(const std::string& what) {
  return {Status::kPeerLost, what};
}

}  // namespace

struct RendezvousServer::State {
  explicit State(const std::string& secret) : token(as_header(secret)) {}
  const std::string token;
  httplib::Server server;
  std::mutex lock;
  std::map<std::string, std::string> values;
  std::optional<std::string> refused;
  int port = 0;
  std::thread thread;

  bool allowed(const httplib::Request& request, httplib::Response& response) {
    if (!equal_in_constant_time(request.get_header_value(kTokenHeader), token)) {
      const std::lock_guard guard(lock);
      refused = request.remote_addr;
      response.status = 403;
      return false;
    }
    if (request.get_param_value("key").size() > kLongestKey || request.body.size() > kLongestValue) {
      response.status = 413;
      return false;
    }
    return true;
  }
  void routes();
};

void RendezvousServer::State::routes() {
  server.set_payload_max_length(kLongestValue);
  server.Post("/set", [this](const httplib::Request& request, httplib::Response& response) {
    if (!allowed(request, response)) return;
    const std::lock_guard guard(lock);
    values[request.get_param_value("key")] = request.body;
  });
  server.Get("/get", [this](const httplib::Request& request, httplib::Response& response) {
    if (!allowed(request, response)) return;
    const std::lock_guard guard(lock);
    const auto found = values.find(request.get_param_value("key"));
    if (found == values.end()) {
      response.status = 404;
      return;
    }
    response.set_content(found->second, "application/octet-stream");
  });
  server.Post("/add", [this](const httplib::Request& request, httplib::Response& response) {
    if (!allowed(request, response)) return;
    const std::lock_guard guard(lock);
    std::string& value = values[request.get_param_value("key")];
    const long long sum = (value.empty() ? 0 : std::atoll(value.c_str())) + std::atoll(request.body.c_str());
    value = std::to_string(sum);
    response.set_content(value, "text/plain");
  });
}

RendezvousServer::RendezvousServer(int port, const std::string& token, int ranks)
    : state_(std::make_unique<State>(token)) {
  if (token.empty()) {
    throw usage_error("ranks on several hosts need a secret of the job, or strangers could join")
        .mend("set CONVOY_JOB_TOKEN to the same random word on all hosts");
  }
  state_->routes();
  // Not SO_REUSEPORT, with which two servers would share a port.
  state_->server.set_socket_options([](int fd) {
    const int yes = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  // Each rank keeps two connections open, each with a thread here.
  state_->server.set_tcp_nodelay(true);
  state_->server.new_task_queue = [ranks] { return new httplib::ThreadPool(static_cast<std::size_t>(2 * ranks + 8)); };
  state_->server.set_keep_alive_max_count(1'000'000);
  // Short: a connection that is cut off, or a stranger's, holds its thread (and the end of the server) no longer than
  // this. Clients connect anew.
  state_->server.set_keep_alive_timeout(3);
  if (port == 0) {
    state_->port = state_->server.bind_to_any_port("0.0.0.0");
  } else {
    state_->port = state_->server.bind_to_port("0.0.0.0", port) ? port : -1;
  }
  if (state_->port <= 0) {
    throw usage_error(fmt::format("port {} is in use on this machine", port))
        .at("the rendezvous of the job")
        .mend("set MASTER_PORT (or --master_port) to a free one");
  }
  state_->thread = std::thread([state = state_.get()] { state->server.listen_after_bind(); });
  while (!state_->server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

RendezvousServer::~RendezvousServer() {
  state_->server.stop();
  state_->thread.join();
}

int RendezvousServer::port() const {
  return state_->port;
}

std::optional<std::string> RendezvousServer::refused() const {
  const std::lock_guard guard(state_->lock);
  return state_->refused;
}

struct RendezvousClient::State {
  State(const std::string& host, int number, const std::string& secret)
      : where(fmt::format("{}:{}", host, number)), client(host, number), headers{{kTokenHeader, as_header(secret)}} {
    client.set_keep_alive(true);
    client.set_tcp_nodelay(true);
    client.set_connection_timeout(2);
    client.set_read_timeout(2);
    client.set_write_timeout(2);
  }
  const std::string where;
  httplib::Client client;
  const httplib::Headers headers;
  std::mutex lock;  // several threads of a rank ask

  std::string target(const char* path, const std::string& key) const {
    return fmt::format("{}?key={}", path, httplib::detail::encode_query_param(key));
  }
  httplib::Response checked(httplib::Result result) const {
    if (!result) throw lost(fmt::format("the rendezvous of the job at {} does not answer", where));
    if (result->status == 403) {
      throw lost(fmt::format("the rendezvous at {} refuses this job's token", where))
          .mend("set the same CONVOY_JOB_TOKEN on all hosts; or the port belongs to another job: choose another one");
    }
    if (result->status != 200 && result->status != 404)
      throw lost(fmt::format("the rendezvous at {} answers with status {}", where, result->status));
    return result.value();
  }
};

RendezvousClient::RendezvousClient(const std::string& address, int port, const std::string& token)
    : state_(std::make_unique<State>(address, port, token)) {}
RendezvousClient::~RendezvousClient() = default;

void RendezvousClient::set(const std::string& key, const std::string& value) {
  const std::lock_guard guard(state_->lock);
  state_->checked(
      state_->client.Post(state_->target("/set", key).c_str(), state_->headers, value, "application/octet-stream"));
}

std::optional<std::string> RendezvousClient::get(const std::string& key) {
  const std::lock_guard guard(state_->lock);
  const httplib::Response response =
      state_->checked(state_->client.Get(state_->target("/get", key).c_str(), state_->headers));
  if (response.status == 404) return std::nullopt;
  return response.body;
}

std::string RendezvousClient::wait(const std::string& key, double timeout_seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_seconds);
  while (true) {
    if (std::optional<std::string> value = get(key)) return *value;
    if (std::chrono::steady_clock::now() > deadline)
      throw lost(fmt::format("'{}' did not come within {:g} s", key, timeout_seconds));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::int64_t RendezvousClient::add(const std::string& key, std::int64_t amount) {
  const std::lock_guard guard(state_->lock);
  return std::atoll(state_
                        ->checked(state_->client.Post(state_->target("/add", key).c_str(), state_->headers,
                                                      std::to_string(amount), "text/plain"))
                        .body.c_str());
}

void RendezvousClient::wait_for_server(double timeout_seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_seconds);
  while (true) {
    {
      const std::lock_guard guard(state_->lock);
      httplib::Result result = state_->client.Get(state_->target("/get", "hello").c_str(), state_->headers);
      if (result) {
        state_->checked(std::move(result));
        return;
      }
    }
    if (std::chrono::steady_clock::now() > deadline) {
      throw lost(fmt::format("no rendezvous at {} within {:g} s", state_->where, timeout_seconds))
          .mend("see that rank 0 runs there and that this host reaches it; --timeout waits longer");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string address_towards(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0 || found == nullptr) {
    throw usage_error(fmt::format("the host '{}' of rank 0 is unknown", address))
        .at("MASTER_ADDR")
        .mend("give its name or address as this host knows it");
  }
  std::string own;
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in mine{};
  socklen_t length = sizeof(mine);
  // A datagram socket sends nothing to connect: it only chooses the way.
  if (fd >= 0 && ::connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &length) == 0) {
    char text[INET_ADDRSTRLEN] = {};
    own = ::inet_ntop(AF_INET, &mine.sin_addr, text, sizeof(text));
  }
  if (fd >= 0) ::close(fd);
  ::freeaddrinfo(found);
  if (own.empty()) throw lost(fmt::format("there is no way from this host to {}", address));
  return own;
}

}  // namespace convoy
