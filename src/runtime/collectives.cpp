#include "runtime/collectives.h"

#include "base/error.h"

namespace convoy {
namespace {

using TicketCell = std::shared_ptr<Communicator::Ticket>;

// Keeps the pieces alive between start and wait; filling them allocates nothing.
template <typename Piece>
class StartKernel : public Kernel {
 public:
  StartKernel(Communicator& communicator, TicketCell ticket, DType dtype, std::vector<Piece> pieces)
      : communicator_(communicator), ticket_(std::move(ticket)), dtype_(dtype), pieces_(std::move(pieces)) {}

 protected:
  Communicator& communicator_;
  TicketCell ticket_;
  DType dtype_;
  std::vector<Piece> pieces_;
};

class ScatterKernel final : public StartKernel<ScatterPiece> {
  using StartKernel::StartKernel;
  void run(const KernelArguments& a) override {
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      pieces_[i].full = a.inputs[i];
      pieces_[i].shard = a.outputs[i];
    }
    *ticket_ = communicator_.start_reduce_scatter(dtype_, pieces_);
  }
};

class GatherKernel final : public StartKernel<GatherPiece> {
  using StartKernel::StartKernel;
  void run(const KernelArguments& a) override {
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      pieces_[i].shard = a.inputs[i];
      pieces_[i].full = a.outputs[i];
    }
    *ticket_ = communicator_.start_all_gather(dtype_, pieces_);
  }
};

class ReduceKernel final : public StartKernel<ReducePiece> {
  using StartKernel::StartKernel;
  void run(const KernelArguments& a) override {
    for (std::size_t i = 0; i < pieces_.size(); ++i) pieces_[i].data = a.outputs[i];
    *ticket_ = communicator_.start_all_reduce(dtype_, pieces_);
  }
};

class WaitKernel final : public Kernel {
 public:
  WaitKernel(Communicator& communicator, TicketCell ticket) : communicator_(communicator), ticket_(std::move(ticket)) {}
  void run(const KernelArguments&) override { communicator_.wait(*ticket_); }

 private:
  Communicator& communicator_;
  TicketCell ticket_;
};

}  // namespace

std::unique_ptr<Kernel> Collectives::prepare(const CollectiveOp& op, Specs inputs,
                                             std::span<const TensorSpec> outputs) {
  check(communicator_ != nullptr, "a program of several ranks needs a communicator");
  TicketCell& ticket = tickets_[op.number];
  if (!ticket) ticket = std::make_shared<Communicator::Ticket>(0);
  if (dynamic_cast<const CollectiveWait*>(&op) != nullptr) return std::make_unique<WaitKernel>(*communicator_, ticket);
  const DType dtype = inputs[0]->dtype;
  if (const auto* scatter = dynamic_cast<const ReduceScatterStart*>(&op)) {
    std::vector<ScatterPiece> pieces;
    for (const ShardCut& cut : scatter->cuts) pieces.push_back({nullptr, nullptr, cut});
    return std::make_unique<ScatterKernel>(*communicator_, ticket, dtype, std::move(pieces));
  }
  if (const auto* gather = dynamic_cast<const AllGatherStart*>(&op)) {
    std::vector<GatherPiece> pieces;
    for (const ShardCut& cut : gather->cuts) pieces.push_back({nullptr, nullptr, cut});
    return std::make_unique<GatherKernel>(*communicator_, ticket, dtype, std::move(pieces));
  }
  std::vector<ReducePiece> pieces;
  for (const TensorSpec& spec : outputs) pieces.push_back({nullptr, spec.numel()});
  return std::make_unique<ReduceKernel>(*communicator_, ticket, dtype, std::move(pieces));
}

}  // namespace convoy
