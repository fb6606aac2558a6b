#include "cuda/nccl_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"

namespace convoy {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr const char* kVariable = "CONVOY_NCCL_LIBRARY";

std::string library_path(const std::string& given) {
  if (!given.empty()) return given;
  const char* named = std::getenv(kVariable);
  return named != nullptr && *named != '\0' ? named : kLibrary;
}

}  // namespace

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::shared_ptr<const NcclApi> load_nccl(const std::string& path) {
  auto api = std::make_shared<NcclApi>();
  api->path = library_path(path);
  void* const library = ::dlopen(api->path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    throw usage_error(fmt::format("cannot open NCCL: {}", reason == nullptr ? "no reason given" : reason))
        .at(api->path)
        .mend(fmt::format("install NCCL, or set {} to its libnccl.so.2", kVariable));
  }
  const auto find = [&]<typename Function>(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(::dlsym(library, symbol));
    if (function != nullptr) return;
    throw usage_error(fmt::format("this NCCL has no {}", symbol))
        .at(api->path)
        .mend(fmt::format("install NCCL {} or newer", nccl_version_text(kOldestNccl)));
  };
  find(api->GetVersion, "ncclGetVersion");
  if (api->GetVersion(&api->version) != ncclSuccess || api->version < kOldestNccl) {
    throw usage_error(fmt::format("NCCL {} is too old", nccl_version_text(api->version)))
        .at(api->path)
        .mend(fmt::format("install NCCL {} or newer, or set {} to one", nccl_version_text(kOldestNccl), kVariable));
  }
  find(api->GetErrorString, "ncclGetErrorString");
  find(api->GetLastError, "ncclGetLastError");
  find(api->GetUniqueId, "ncclGetUniqueId");
  find(api->CommInitRankConfig, "ncclCommInitRankConfig");
  find(api->CommGetAsyncError, "ncclCommGetAsyncError");
  find(api->CommFinalize, "ncclCommFinalize");
  find(api->CommDestroy, "ncclCommDestroy");
  find(api->CommAbort, "ncclCommAbort");
  find(api->GroupStart, "ncclGroupStart");
  find(api->GroupEnd, "ncclGroupEnd");
  find(api->Send, "ncclSend");
  find(api->Recv, "ncclRecv");
  find(api->Broadcast, "ncclBroadcast");
  find(api->Reduce, "ncclReduce");
  find(api->AllReduce, "ncclAllReduce");
  find(api->ReduceScatter, "ncclReduceScatter");
  find(api->AllGather, "ncclAllGather");
  return api;
}

}  // namespace convoy
