#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#ifdef CONVOY_HAVE_GLOO
#include "comm/gloo_communicator.h"
#endif
#include "comm/shm_communicator.h"

namespace convoy {

std::size_t communication_bytes(const CommunicatorOptions& options) {
  if (options.size == 1) return 0;
  if (options.local_size != options.size) {
#ifdef CONVOY_HAVE_GLOO
    return gloo_scratch_bytes();
#else
    return 0;
#endif
  }
  ShmOptions shm;
  shm.size = options.size;
  return shm_scratch_bytes(shm);
}

std::unique_ptr<Communicator> connect(const CommunicatorOptions& options) {
  if (options.size == 1) return make_single_communicator();
  if (options.rank < 0 || options.rank >= options.size)
    throw usage_error(fmt::format("rank {} of {} ranks", options.rank, options.size));
  if (options.local_size != options.size) {
#ifdef CONVOY_HAVE_GLOO
    return make_gloo_communicator(options);
#else
    throw usage_error(fmt::format("{} of {} ranks are on this host, and this build has no Gloo to reach the others",
                                  options.local_size, options.size))
        .mend("build where libgloo-dev is installed, or start all ranks on one host");
#endif
  }
  Hasher name;
  name.add(options.job);
  name.add(options.token);
  name.add(fmt::format("{}:{}", options.master_address, options.master_port));
  ShmOptions shm;
  shm.name = fmt::format("convoy-{}-{}", ::getuid(), hex64(name.value()));
  shm.rank = options.rank;
  shm.size = options.size;
  shm.timeout_seconds = options.timeout_seconds;
  return make_shm_communicator(shm);
}

}  // namespace convoy
