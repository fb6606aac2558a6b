// What a rank tells of others; needs Gloo.
#include "comm/peer_monitor.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "comm/rendezvous.h"

namespace convoy {
namespace {

CommunicatorOptions rank_of_three(int rank, int port, double timeout) {
  CommunicatorOptions options;
  options.rank = rank;
  options.size = 3;
  options.master_port = port;
  options.token = "secret";
  options.timeout_seconds = timeout;
  return options;
}

TEST(PeerMonitor, WhoLeftForADeadRankIsNotNamedInItsPlace) {
  const RendezvousServer server(0, "secret", 3);
  PeerMonitor patient(rank_of_three(0, server.port(), 60), "job/");
  PeerMonitor hasty(rank_of_three(2, server.port(), 2), "job/");
  patient.start();
  hasty.start();
  std::string seen;
  for (int i = 0; i < 200 && seen.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    hasty.progress();
    patient.progress();
    try {
      hasty.check();
    } catch (const Error& error) {
      seen = error.message();
    }
  }
  ASSERT_EQ(seen.rfind("rank 1 died", 0), 0u) << seen;
  hasty.end();
  try {
    patient.explain("a connection was closed");
  } catch (const Error& error) {
    EXPECT_EQ(error.message().rfind("rank 1 died", 0), 0u) << error.message();
  }
}

}  // namespace
}  // namespace convoy
