// The only rank of its group.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/communicator.h"

namespace convoy {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "single"; }

  Ticket start_reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) override {
    for (const ScatterPiece& piece : pieces) copy(dtype, piece.shard, piece.full, piece.cut.numel);
    ++traffic_.operations;
    return 0;
  }
  Ticket start_all_gather(DType dtype, std::span<const GatherPiece> pieces) override {
    for (const GatherPiece& piece : pieces) copy(dtype, piece.full, piece.shard, piece.cut.numel);
    ++traffic_.operations;
    return 0;
  }
  Ticket start_all_reduce(DType, std::span<const ReducePiece>) override {
    ++traffic_.operations;
    return 0;
  }
  void wait(Ticket) override {}
  void reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) override {
    start_reduce_scatter(dtype, pieces);
  }
  void all_gather(DType dtype, std::span<const GatherPiece> pieces) override { start_all_gather(dtype, pieces); }
  void all_reduce(DType dtype, std::span<const ReducePiece> pieces) override { start_all_reduce(dtype, pieces); }
  void broadcast(std::span<std::byte>, int root) override { check(root == 0, "no such rank to broadcast from"); }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override {
    check(send.size() == receive.size(), "all_to_all: blocks of different sizes");
    std::copy(send.begin(), send.end(), receive.begin());
  }
  void send(std::span<const std::byte>, int) override { throw internal_error("there is no other rank to send to"); }
  void receive(std::span<std::byte>, int) override { throw internal_error("there is no other rank to receive from"); }
  void barrier() override {}
  std::unique_ptr<Communicator> split(int) override { return std::make_unique<SingleCommunicator>(); }
  void progress() override {}
  void abort(const std::string&) override {}
  const Traffic& traffic() const override { return traffic_; }

 private:
  static void copy(DType dtype, std::byte* to, const std::byte* from, std::int64_t numel) {
    if (to != from && numel > 0) std::memcpy(to, from, static_cast<std::size_t>(numel) * size_of(dtype));
  }
  Traffic traffic_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace convoy
