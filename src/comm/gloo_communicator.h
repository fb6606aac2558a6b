// The communicator of ranks on several hosts: Gloo over TCP, with the sums in Convoy's own fixed order.
#pragma once

#include "comm/communicator.h"

namespace convoy {

// Connects through the rendezvous at options.master_address:master_port, which rank 0 serves if serve_rendezvous is
// set.
std::unique_ptr<Communicator> make_gloo_communicator(const CommunicatorOptions& options);

// Bytes of scratch per rank.
std::size_t gloo_scratch_bytes();

}  // namespace convoy
