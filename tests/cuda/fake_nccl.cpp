// A library with NCCL's functions whose "GPUs" are processes of this host: bytes go through shared memory, and the
// stream is a FakeStream. Sums run from rank 0 upwards, which is not the order of the tree. FAKE_NCCL scripts failures:
//   version=N        says that it is version N
//   fail-id          ncclGetUniqueId fails
//   fail-join        joining fails at once
//   never-join       joining never ends
//   remote-after=N   after N groups of operations nothing moves, and the communicator reports a remote error
//   hang-after=N     after N groups of operations nothing moves, and nothing is reported
//   late             a group's operations enter the stream some time after its end
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/fake_stream.h"

namespace {

using convoy::testing::FakeStream;

constexpr int kMostRanks = 4;
constexpr std::size_t kRing = 1 << 16;

// Bytes from one rank to another.
struct Ring {
  std::atomic<std::uint64_t> written, read;
  char bytes[kRing];
};
struct Shared {
  std::atomic<int> joined;
  Ring rings[kMostRanks][kMostRanks];
};

std::atomic<int> aborts = 0;

std::string script(const char* word) {
  const char* text = std::getenv("FAKE_NCCL");
  const std::string name = word;
  if (text == nullptr || std::strncmp(text, word, name.size()) != 0) return "";
  return text[name.size()] == '=' ? text + name.size() + 1 : "yes";
}

// A message to or from a peer, or (peer < 0) what is done once all before it have ended.
struct Step {
  bool out = false;
  int peer = -1;
  char* at = nullptr;
  std::size_t left = 0;
  std::function<void()> then;
};

}  // namespace

struct ncclComm {
  int rank = 0, ranks = 0;
  std::string name;
  Shared* shared = nullptr;
  std::atomic<bool> aborted = false, remote_error = false;
  std::atomic<int> running = 0;  // tasks in streams
  int groups = 0;
  int looks_to_go = 0;  // until what is late enters the stream
  std::function<void()> late;
};

namespace {

bool move(ncclComm& comm, Step& step) {
  Ring& ring = step.out ? comm.shared->rings[comm.rank][step.peer] : comm.shared->rings[step.peer][comm.rank];
  const std::uint64_t written = ring.written.load();
  const std::uint64_t read = ring.read.load();
  const std::uint64_t at = step.out ? written : read;
  std::size_t count = std::min<std::size_t>(step.left, step.out ? kRing - (written - read) : written - read);
  count = std::min(count, kRing - at % kRing);
  if (count == 0) return false;
  char* place = ring.bytes + at % kRing;
  std::memcpy(step.out ? place : step.at, step.out ? step.at : place, count);
  (step.out ? ring.written : ring.read).store(at + count);
  step.at += count;
  step.left -= count;
  return true;
}

void run(ncclComm& comm, std::deque<Step> steps) {
  while (!steps.empty() && !comm.aborted) {
    bool moved = false;
    bool seen[2][kMostRanks] = {};
    bool all_before = true;
    for (Step& step : steps) {
      if (step.peer < 0) {
        if (all_before && step.then) {
          step.then();
          step.then = nullptr;
          moved = true;
        }
        continue;
      }
      if (step.left == 0) continue;
      all_before = false;
      bool& busy = seen[step.out ? 1 : 0][step.peer];
      if (!busy) moved = move(comm, step) || moved;
      busy = true;
    }
    while (!steps.empty() && (steps.front().peer < 0 ? !steps.front().then : steps.front().left == 0))
      steps.pop_front();
    if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

struct Group {
  int depth = 0;
  ncclComm* comm = nullptr;
  FakeStream* stream = nullptr;
  std::deque<Step> steps;
};
thread_local Group group;

void launch(ncclComm& comm, FakeStream& stream, std::deque<Step> steps) {
  const std::string remote = script("remote-after");
  const std::string hang = script("hang-after");
  const std::string& after = remote.empty() ? hang : remote;
  const bool stuck = !after.empty() && comm.groups >= std::atoi(after.c_str());
  if (stuck && !remote.empty()) comm.remote_error = true;
  ++comm.groups;
  ++comm.running;
  stream.put([&comm, stuck, steps = std::move(steps)] {
    while (stuck && !comm.aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    run(comm, steps);
    --comm.running;
  });
}

ncclResult_t end_group() {
  if (group.comm == nullptr) return ncclSuccess;
  Group ended;
  std::swap(ended, group);
  if (script("late").empty()) {
    launch(*ended.comm, *ended.stream, std::move(ended.steps));
    return ncclSuccess;
  }
  ended.comm->looks_to_go = 20;
  ended.comm->late = [comm = ended.comm, stream = ended.stream, steps = std::move(ended.steps)] {
    launch(*comm, *stream, steps);
  };
  return ncclInProgress;
}

ncclResult_t add(ncclComm_t comm, cudaStream_t stream, std::vector<Step> steps) {
  if (group.comm != nullptr && group.comm != comm) return ncclInvalidUsage;
  group.comm = comm;
  group.stream = reinterpret_cast<FakeStream*>(stream);
  for (Step& step : steps) {
    if (step.peer >= comm->ranks || step.peer == comm->rank) return ncclInvalidArgument;
    group.steps.push_back(std::move(step));
  }
  return group.depth == 0 ? end_group() : ncclSuccess;
}

Step to(int peer, const void* from, std::size_t bytes) {
  return {true, peer, static_cast<char*>(const_cast<void*>(from)), bytes, {}};
}
Step from(int peer, void* at, std::size_t bytes) {
  return {false, peer, static_cast<char*>(at), bytes, {}};
}
Step then(std::function<void()> what) {
  return {false, -1, nullptr, 0, std::move(what)};
}

std::size_t bytes_of(ncclDataType_t type) {
  return type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : type == ncclFloat16 || type == ncclBfloat16 ? 2 : 1;
}

// Sums of f32 and f64 alone; others are refused.
bool can_sum(ncclDataType_t type) {
  return type == ncclFloat32 || type == ncclFloat64;
}
template <typename T>
void add_to(void* sum, const void* more, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) static_cast<T*>(sum)[i] += static_cast<const T*>(more)[i];
}

// Steps of a sum at `root`.
void sum_at(std::vector<Step>& steps, int root, const void* send, void* receive, std::size_t count, ncclDataType_t type,
            ncclComm_t comm) {
  const std::size_t bytes = count * bytes_of(type);
  if (comm->rank != root) {
    steps.push_back(to(root, send, bytes));
    return;
  }
  auto all = std::make_shared<std::vector<char>>(bytes * static_cast<std::size_t>(comm->ranks));
  for (int r = 0; r < comm->ranks; ++r) {
    if (r != root) steps.push_back(from(r, all->data() + static_cast<std::size_t>(r) * bytes, bytes));
  }
  steps.push_back(then([=] {
    std::memcpy(all->data() + static_cast<std::size_t>(root) * bytes, send, bytes);
    for (int r = 1; r < comm->ranks; ++r) {
      const char* more = all->data() + static_cast<std::size_t>(r) * bytes;
      type == ncclFloat32 ? add_to<float>(all->data(), more, count) : add_to<double>(all->data(), more, count);
    }
    std::memcpy(receive, all->data(), bytes);
  }));
}

}  // namespace

// nccl.h declares the functions as they are exported.
extern "C" {

int fake_nccl_aborts() {
  return aborts;
}

ncclResult_t ncclGetVersion(int* version) {
  const std::string given = script("version");
  *version = given.empty() ? NCCL_VERSION_CODE : std::atoi(given.c_str());
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error" : "some failure";
}

const char* ncclGetLastError(ncclComm_t) {
  return "the script says so";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (!script("fail-id").empty()) return ncclSystemError;
  static int made = 0;
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "/fake-nccl-%d-%d", ::getpid(), made++);
  const int fd = ::shm_open(id->internal, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd < 0 || ::ftruncate(fd, sizeof(Shared)) != 0) return ncclSystemError;
  ::close(fd);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  *comm = nullptr;
  if (config == nullptr || config->blocking != 0 || ranks > kMostRanks) return ncclInvalidUsage;
  const int fd = ::shm_open(id.internal, O_RDWR, 0600);
  if (!script("fail-join").empty()) {
    ::shm_unlink(id.internal);
    return ncclInternalError;
  }
  if (fd < 0) return ncclSystemError;
  void* at = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (at == MAP_FAILED) return ncclSystemError;
  auto* made = new ncclComm;
  made->rank = rank;
  made->ranks = ranks;
  made->name = id.internal;
  made->shared = static_cast<Shared*>(at);
  if (script("never-join").empty()) ++made->shared->joined;
  *comm = made;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = ncclSuccess;
  if (comm->remote_error) {
    *error = ncclRemoteError;
  } else if (comm->shared->joined < comm->ranks) {
    *error = ncclInProgress;
  } else if (comm->late && --comm->looks_to_go > 0) {
    *error = ncclInProgress;
  } else if (comm->late) {
    comm->late();
    comm->late = nullptr;
  }
  if (*error == ncclSuccess) ::shm_unlink(comm->name.c_str());
  return ncclSuccess;
}

#ifndef FAKE_NCCL_WITHOUT_FINALIZE
ncclResult_t ncclCommFinalize(ncclComm_t) {
  return ncclInProgress;
}
#endif

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  while (comm->running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ::munmap(comm->shared, sizeof(Shared));
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  ++aborts;
  comm->aborted = true;
  ::shm_unlink(comm->name.c_str());
  return ncclCommDestroy(comm);
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  return --group.depth == 0 ? end_group() : ncclSuccess;
}

ncclResult_t ncclSend(const void* at, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(comm, stream, {to(peer, at, count * bytes_of(type))});
}

ncclResult_t ncclRecv(void* at, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(comm, stream, {from(peer, at, count * bytes_of(type))});
}

ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  std::vector<Step> steps;
  if (comm->rank != root) {
    steps.push_back(from(root, receive, bytes));
  } else {
    for (int r = 0; r < comm->ranks; ++r) {
      if (r != root) steps.push_back(to(r, send, bytes));
    }
    steps.push_back(then([=] { std::memmove(receive, send, bytes); }));
  }
  return add(comm, stream, std::move(steps));
}

ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  if (!can_sum(type) || op != ncclSum) return ncclInvalidArgument;
  std::vector<Step> steps;
  sum_at(steps, root, send, receive, count, type, comm);
  return add(comm, stream, std::move(steps));
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  if (!can_sum(type) || op != ncclSum) return ncclInvalidArgument;
  std::vector<Step> steps;
  for (int r = 0; r < comm->ranks; ++r) {
    sum_at(steps, r, static_cast<const char*>(send) + static_cast<std::size_t>(r) * count * bytes_of(type), receive,
           count, type, comm);
  }
  return add(comm, stream, std::move(steps));
}

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (!can_sum(type) || op != ncclSum) return ncclInvalidArgument;
  const std::size_t bytes = count * bytes_of(type);
  std::vector<Step> steps;
  auto all = std::make_shared<std::vector<char>>(bytes * static_cast<std::size_t>(comm->ranks));
  for (int r = 0; r < comm->ranks; ++r) {
    if (r == comm->rank) continue;
    steps.push_back(to(r, send, bytes));
    steps.push_back(from(r, all->data() + static_cast<std::size_t>(r) * bytes, bytes));
  }
  steps.push_back(then([=] {
    std::memcpy(all->data() + static_cast<std::size_t>(comm->rank) * bytes, send, bytes);
    for (int r = 1; r < comm->ranks; ++r) {
      const char* more = all->data() + static_cast<std::size_t>(r) * bytes;
      type == ncclFloat32 ? add_to<float>(all->data(), more, count) : add_to<double>(all->data(), more, count);
    }
    std::memcpy(receive, all->data(), bytes);
  }));
  return add(comm, stream, std::move(steps));
}

ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  char* all = static_cast<char*>(receive);
  std::vector<Step> steps;
  for (int r = 0; r < comm->ranks; ++r) {
    if (r == comm->rank) continue;
    steps.push_back(to(r, send, bytes));
    steps.push_back(from(r, all + static_cast<std::size_t>(r) * bytes, bytes));
  }
  steps.push_back(then([=] { std::memmove(all + static_cast<std::size_t>(comm->rank) * bytes, send, bytes); }));
  return add(comm, stream, std::move(steps));
}

}  // extern "C"
