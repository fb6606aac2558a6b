#include "cuda/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cuda/nccl_operations.h"
#include "cuda/rank_sum.h"
#include "program/program.h"

namespace convoy {
namespace {

// A text of each rank, by rank.
std::vector<std::string> gather_texts(Communicator& host, const std::string& mine) {
  constexpr std::size_t kLength = 512;
  const auto ranks = static_cast<std::size_t>(host.size());
  std::vector<char> all(ranks * kLength);
  char* own = all.data() + static_cast<std::size_t>(host.rank()) * kLength;
  mine.copy(own, kLength - 1);
  const GatherPiece piece{reinterpret_cast<const std::byte*>(own),
                          reinterpret_cast<std::byte*>(all.data()),
                          {static_cast<std::int64_t>(all.size()), static_cast<std::int64_t>(kLength)}};
  host.all_gather(DType::kU8, std::span(&piece, 1));
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < ranks; ++r) texts.emplace_back(all.data() + r * kLength);
  return texts;
}

// Why these ranks cannot use NCCL, or nothing; by what each has told of itself: its GPU, its NCCL, what it lacks.
std::string objection(const std::vector<std::string>& gpus, const std::vector<std::string>& versions,
                      const std::vector<std::string>& lacks) {
  for (std::size_t r = 0; r < lacks.size(); ++r) {
    if (!lacks[r].empty()) return fmt::format("rank {}: {}", r, lacks[r]);
  }
  std::map<std::string, std::size_t> owner;
  for (std::size_t r = 0; r < gpus.size(); ++r) {
    const auto [known, fresh] = owner.try_emplace(gpus[r], r);
    if (!fresh)
      return fmt::format("ranks {} and {} are on one GPU ({}), and NCCL wants one for each", known->second, r, gpus[r]);
  }
  for (std::size_t r = 0; r < versions.size(); ++r) {
    if (versions[r] != versions[0])
      return fmt::format("rank 0 has NCCL {} and rank {} has {}", versions[0], r, versions[r]);
  }
  return {};
}

}  // namespace

std::string NcclCommunicator::join() {
  std::string failure;
  const auto attempt = [&](const auto& work) {
    if (!failure.empty()) return;
    try {
      work();
    } catch (const Error& error) {
      failure = error.what();
    }
  };
  // Whether all are well: else the first rank's failure that is one.
  const auto agreed = [&] {
    const std::vector<std::string> failures = gather_texts(*host_, failure);
    const auto first = std::find_if(failures.begin(), failures.end(), [](const auto& text) { return !text.empty(); });
    failure = first == failures.end() ? "" : *first;
    return failure.empty();
  };
  // The id comes with a flag: that there is one.
  struct {
    ncclUniqueId id{};
    char there = 0;
  } ticket;
  attempt([&] {
    lane_->enter();
    take_scratch();
    if (rank() != 0) return;
    if (const ncclResult_t result = nccl().GetUniqueId(&ticket.id); result != ncclSuccess)
      throw Error(Status::kInternal, fmt::format("NCCL: making an id failed: {} ({})", nccl().GetErrorString(result),
                                                 nccl().GetLastError(nullptr)));
    ticket.there = 1;
  });
  host_->broadcast(std::as_writable_bytes(std::span(&ticket, 1)), 0);
  if (!agreed()) return failure;
  attempt([&] { group_.join(ticket.id); });
  if (!agreed()) {
    group_.abort();
    return failure;
  }
  // NCCL links GPUs, and takes its memory, when they first talk in each way.
  attempt([&] {
    const std::size_t each = region_ / static_cast<std::size_t>(size()) / kLine * kLine;
    std::byte* const other = scratch_ + static_cast<std::size_t>(size() - 1) * region_;
    group_.together("the first exchange", [&](const auto& took) {
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        took(nccl().Send(scratch_, each, ncclUint8, r, group_.comm(), lane_->stream()));
        took(nccl().Recv(other + static_cast<std::size_t>(r) * each, each, ncclUint8, r, group_.comm(),
                         lane_->stream()));
      }
    });
    group_.together("the first gathering", [&](const auto& took) {
      took(nccl().AllGather(scratch_, other, each, ncclUint8, group_.comm(), lane_->stream()));
    });
    if (!options_.deterministic) {
      group_.together("the first sum", [&](const auto& took) {
        took(nccl().AllReduce(scratch_, scratch_, each / 4, ncclFloat32, ncclSum, group_.comm(), lane_->stream()));
      });
    }
    group_.finish("the first operation", options_.scratch);
  });
  if (!agreed()) group_.abort();
  return failure;
}

NcclFound find_nccl() {
  try {
    return {load_nccl(), {}};
  } catch (const Error& failure) {
    return {nullptr, failure.what()};
  }
}

NcclOutcome make_nccl_communicator(const NcclFound& found, std::unique_ptr<GpuLane> lane,
                                   std::unique_ptr<Communicator>& host, const NcclOptions& options) {
  const std::vector<std::string> gpus = gather_texts(*host, lane->gpu());
  const std::vector<std::string> versions =
      gather_texts(*host, found.api == nullptr ? "" : nccl_version_text(found.api->version));
  const std::vector<std::string> lacks = gather_texts(*host, found.api == nullptr ? found.reason : "");
  if (options.deterministic && host->size() > cuda::kMostManySummed) {
    return {nullptr, fmt::format("sums in a fixed order are of {} ranks at most, and there are {} (deterministic: "
                                 "false lets NCCL add)",
                                 cuda::kMostManySummed, host->size())};
  }
  if (std::string reason = objection(gpus, versions, lacks); !reason.empty()) return {nullptr, std::move(reason)};
  const std::size_t before = lane->free_memory();
  GpuLane& gpu = *lane;
  auto made = std::make_unique<NcclCommunicator>(found.api, std::move(lane), std::move(host), options);
  std::string failure;
  try {
    failure = made->join();
  } catch (...) {
    host = made->give_up();
    throw;
  }
  if (!failure.empty()) {
    host = made->give_up();
    return {nullptr, std::move(failure)};
  }
  const std::size_t after = gpu.free_memory();
  log_message(made->rank() == 0 ? LogLevel::kInfo : LogLevel::kDebug,
              fmt::format("NCCL {} links {} GPUs; beside the plan it takes {} of this GPU's memory", versions[0],
                          made->size(), human_bytes(before > after ? before - after : 0)));
  return {std::move(made), {}};
}

}  // namespace convoy
