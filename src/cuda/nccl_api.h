// NCCL's functions, found at run time: one binary also starts where the library is not there. nccl.h is needed to
// compile only.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

namespace convoy {

// The functions that Convoy uses, by their names without the prefix. Tests fill one of their own.
struct NcclApi {
  decltype(&ncclGetVersion) GetVersion = nullptr;
  decltype(&ncclGetErrorString) GetErrorString = nullptr;
  decltype(&ncclGetLastError) GetLastError = nullptr;
  decltype(&ncclGetUniqueId) GetUniqueId = nullptr;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig = nullptr;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError = nullptr;
  decltype(&ncclCommFinalize) CommFinalize = nullptr;
  decltype(&ncclCommDestroy) CommDestroy = nullptr;
  decltype(&ncclCommAbort) CommAbort = nullptr;
  decltype(&ncclGroupStart) GroupStart = nullptr;
  decltype(&ncclGroupEnd) GroupEnd = nullptr;
  decltype(&ncclSend) Send = nullptr;
  decltype(&ncclRecv) Recv = nullptr;
  decltype(&ncclBroadcast) Broadcast = nullptr;
  decltype(&ncclReduce) Reduce = nullptr;
  decltype(&ncclAllReduce) AllReduce = nullptr;
  decltype(&ncclReduceScatter) ReduceScatter = nullptr;
  decltype(&ncclAllGather) AllGather = nullptr;

  std::string path;  // of the library, as it was asked for
  int version = 0;   // as NCCL_VERSION_CODE
};

// The oldest NCCL that Convoy uses: nothing older was built for CUDA 12.
inline constexpr int kOldestNccl = NCCL_VERSION(2, 18, 0);

// "2.28.9"
std::string nccl_version_text(int version);

// Opens the library `path` (empty: what CONVOY_NCCL_LIBRARY names, else libnccl.so.2). Throws a usage error where it is
// not there, lacks a function or is too old. The library stays loaded: it has threads of its own.
std::shared_ptr<const NcclApi> load_nccl(const std::string& path = {});

}  // namespace convoy
