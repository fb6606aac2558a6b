#include "comm/rendezvous.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "base/error.h"

namespace convoy {
namespace {

TEST(Rendezvous, SetsGetsWaitsAndCounts) {
  RendezvousServer server(0, "secret");
  RendezvousClient client("127.0.0.1", server.port(), "secret");
  EXPECT_FALSE(client.get("a").has_value());
  const std::string value("with \0 and \xff", 13);
  client.set("a/b c&d=", value);
  EXPECT_EQ(client.get("a/b c&d="), value);
  EXPECT_EQ(client.add("n", 3), 3);
  EXPECT_EQ(client.add("n", 4), 7);
  std::thread later([&] {
    RendezvousClient other("127.0.0.1", server.port(), "secret");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    other.set("late", "here");
  });
  EXPECT_EQ(client.wait("late", 5), "here");
  later.join();
  EXPECT_THROW(client.wait("never", 0.1), Error);
}

TEST(Rendezvous, AStrangerCanNeitherReadNorWrite) {
  RendezvousServer server(0, "secret");
  RendezvousClient friendly("127.0.0.1", server.port(), "secret");
  friendly.set("a", "1");
  EXPECT_FALSE(server.refused().has_value());
  for (const std::string& token :
       {std::string(), std::string("secre"), std::string("secret "), std::string("Secret")}) {
    RendezvousClient stranger("127.0.0.1", server.port(), token);
    EXPECT_THROW(stranger.get("a"), Error) << token;
    EXPECT_THROW(stranger.set("a", "2"), Error) << token;
    EXPECT_THROW(stranger.add("n", 1), Error) << token;
    EXPECT_THROW(stranger.wait_for_server(0.2), Error) << token;
  }
  EXPECT_EQ(friendly.get("a"), "1");
  EXPECT_FALSE(friendly.get("n").has_value());
  EXPECT_EQ(server.refused(), "127.0.0.1");
}

TEST(Rendezvous, NeedsASecret) {
  EXPECT_THROW(RendezvousServer(0, ""), Error);
}

TEST(Rendezvous, StrangersWhoHoldConnectionsDelayOthersOnly) {
  RendezvousServer server(0, "secret", 1);
  std::vector<int> held;
  for (int i = 0; i < 40; ++i) {  // more than the server has threads
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(server.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    held.push_back(fd);
  }
  RendezvousClient client("127.0.0.1", server.port(), "secret");
  client.wait_for_server(20);
  client.set("a", "1");
  EXPECT_EQ(client.get("a"), "1");
  for (const int fd : held) ::close(fd);
}

TEST(Rendezvous, RefusesWhatIsTooLarge) {
  RendezvousServer server(0, "secret");
  RendezvousClient client("127.0.0.1", server.port(), "secret");
  EXPECT_THROW(client.set(std::string(300, 'k'), "v"), Error);
  EXPECT_THROW(client.set("k", std::string(2 << 20, 'v')), Error);
}

TEST(Rendezvous, SaysThatThePortIsTakenAndThatNobodyAnswers) {
  RendezvousServer server(0, "secret");
  try {
    RendezvousServer second(server.port(), "secret");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kUsage);
    EXPECT_NE(std::string(error.what()).find("is in use"), std::string::npos);
  }
  RendezvousClient nobody("127.0.0.1", 1, "secret");
  EXPECT_THROW(nobody.wait_for_server(0.2), Error);
}

}  // namespace
}  // namespace convoy
