// The communicator of ranks on one host, through shared memory that is taken once.
//
// Large tensors go through the scratch in chunks that stay in the cache: while one chunk is summed the next is copied
// in, with one meeting of the ranks per chunk.
#pragma once

#include <string>

#include "comm/communicator.h"

namespace convoy {

struct ShmOptions {
  std::string name;  // without "/": the same on all ranks, and on no others of this host
  int rank = 0, size = 1;
  double timeout_seconds = 30;
  std::size_t chunk = std::size_t{1} << 20;  // bytes of a rank's data under way at once
};

std::unique_ptr<Communicator> make_shm_communicator(const ShmOptions& options);
// Bytes of shared memory per rank.
std::size_t shm_scratch_bytes(const ShmOptions& options);

}  // namespace convoy
