// The communicator of nccl_communicator.h: how ranks join is in nccl_communicator.cpp, the operations in
// nccl_operations.cpp.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/queued_communicator.h"
#include "cuda/nccl_communicator.h"
#include "cuda/nccl_group.h"

namespace convoy {

class NcclCommunicator final : public QueuedCommunicator {
 public:
  NcclCommunicator(std::shared_ptr<const NcclApi> api, std::unique_ptr<GpuLane> lane,
                   std::unique_ptr<Communicator> host, const NcclOptions& options)
      : options_(options),
        lane_(std::move(lane)),
        host_(std::move(host)),
        group_(std::move(api), *lane_, *host_, options.timeout_seconds) {}
  ~NcclCommunicator() override { queue_.stop(); }

  // Joins NCCL's communicator and runs an operation of each kind, so that what NCCL takes is taken. Returns why it
  // failed, the same on all ranks, or nothing.
  std::string join();
  // Gives the host's group back; the communicator is then of no use.
  std::unique_ptr<Communicator> give_up() {
    group_.abort();
    return std::move(host_);
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string name() const override { return "nccl"; }
  bool reaches_device_memory() const override { return true; }

  void broadcast(std::span<std::byte> bytes, int root) override;
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override;
  void send(std::span<const std::byte> bytes, int to) override;
  void receive(std::span<std::byte> bytes, int from) override;
  void barrier() override {
    direct([&] { through(*host_, [&] { host_->barrier(); }); });
  }
  // The group joins NCCL when it first meets tensors of the GPU: most carry host memory only.
  std::unique_ptr<Communicator> split(int color) override {
    std::unique_ptr<Communicator> group;
    direct([&] {
      group = host_->split(color);
      if (group->size() == 1) return;
      group = std::make_unique<NcclCommunicator>(api(), lane_->another(), std::move(group), options_);
    });
    return group;
  }
  void progress() override { host_->progress(); }
  void look_around(bool suspects) override { host_->look_around(suspects); }
  void abort(const std::string& reason) override {
    host_->abort(reason);
    group_.end("this rank failed: " + reason);
  }

 private:
  static constexpr std::size_t kLine = 256;  // bytes at which blocks in scratch begin
  static std::size_t whole_lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

  std::shared_ptr<const NcclApi> api() const { return group_.shared_api(); }
  const NcclApi& nccl() const { return group_.api(); }
  std::uint64_t mark() override { return lane_->mark(); }
  void reach(std::uint64_t mark) override {
    lane_->enter();
    group_.reach(mark);
  }
  double seconds_waited() const override { return host_->traffic().seconds_waiting; }

  template <typename Piece, typename At, typename Count>
  bool on_device(std::span<const Piece> pieces, const At& at, const Count& count) const {
    for (const Piece& piece : pieces) {
      if (count(piece) > 0) return lane_->holds(at(piece));
    }
    return false;
  }

  // Meetings in the host's group: where one fails, so does NCCL's, which others may wait in.
  template <typename Meeting>
  void or_abort(const Meeting& meeting) {
    try {
      meeting();
    } catch (...) {
      group_.abort();
      throw;
    }
  }
  // The ranks are here, and about to do the same.
  void meet(const char* operation, DType dtype, std::uint64_t shape);
  // A group that was split off, at its first operation on the GPU.
  void join_late() {
    if (group_.aborted()) throw Error(Status::kPeerLost, "NCCL's communicator was given up after an error");
    if (group_.joined()) return;
    if (const std::string failure = join(); !failure.empty()) throw Error(Status::kInternal, failure);
  }
  void take_scratch() {
    if (scratch_ != nullptr) return;
    scratch_ = lane_->take_scratch(options_.scratch);
    region_ = options_.scratch / static_cast<std::size_t>(size()) / kLine * kLine;
  }

  // Elements [begin, begin + count) of a piece.
  struct Segment {
    std::size_t piece;
    std::int64_t begin, count;
  };
  // The next segments of what `to` sums: at most a region of scratch.
  template <typename Range>
  void next_segments(int to, std::size_t pieces, std::size_t element, const Range& range);
  template <typename Range, typename Full, typename Out>
  void sum_by_tree(DType dtype, std::size_t pieces, const Range& range, const Full& full, const Out& out);
  void gather(DType dtype, std::span<const GatherPiece> pieces);

  void run_reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) override;
  void run_all_gather(DType dtype, std::span<const GatherPiece> pieces) override;
  void run_all_reduce(DType dtype, std::span<const ReducePiece> pieces) override;

  const NcclOptions options_;
  // In the order in which they may go: the group uses the other two.
  std::unique_ptr<GpuLane> lane_;
  std::unique_ptr<Communicator> host_;
  NcclGroup group_;
  std::byte* scratch_ = nullptr;  // a region for each rank
  std::size_t region_ = 0;        // bytes
  // Of the operation that runs, by rank; kept, so that a step allocates nothing.
  struct Cursor {
    std::size_t piece = 0;
    std::int64_t at = 0;  // elements of it that were dealt with
    std::vector<Segment> segments;
  };
  std::vector<Cursor> cursors_;
  std::vector<const std::byte*> operands_;
  std::vector<std::uint64_t> marks_;
  std::vector<ScatterPiece> parts_;
  std::vector<GatherPiece> gathered_;
};

}  // namespace convoy
