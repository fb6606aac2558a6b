#include "runtime/collectives.h"

#include "base/error.h"

namespace convoy {
namespace {

using StartedCell = std::shared_ptr<Collectives::Started>;

// Keeps the pieces alive between start and wait; filling them allocates nothing. Where communicators cannot reach the
// device's memory, an operation works on copies in host memory, which the wait takes back.
template <typename Piece>
class StartKernel : public Kernel {
 public:
  StartKernel(Device& device, Communicator& communicator, StartedCell started, DType dtype, std::vector<Piece> pieces)
      : device_(device),
        communicator_(communicator),
        in_place_(device.host_memory() || communicator.reaches_device_memory()),
        started_(std::move(started)),
        dtype_(dtype),
        pieces_(std::move(pieces)) {}

 protected:
  void begin() {
    started_->back.clear();
    used_ = 0;
  }
  std::size_t bytes(std::int64_t elements) const { return static_cast<std::size_t>(elements) * size_of(dtype_); }
  // Where the operation reads what lies at `from`.
  std::byte* outward(std::byte* from, std::size_t size) {
    if (in_place_) return from;
    std::byte* to = room(size);
    device_.copy_out({to, size}, from);
    return to;
  }
  // Where it writes what belongs at `to`; `at` is the copy that was read, for operations in place.
  std::byte* inward(std::byte* to, std::size_t size, std::byte* at = nullptr) {
    if (in_place_) return to;
    if (at == nullptr) at = room(size);
    started_->back.push_back({to, at, size});
    return at;
  }

  Device& device_;
  Communicator& communicator_;
  const bool in_place_;  // the communicator works on the tensors themselves
  StartedCell started_;
  DType dtype_;
  std::vector<Piece> pieces_;

 private:
  std::byte* room(std::size_t size) {
    if (used_ == copies_.size()) copies_.emplace_back(size);
    check(copies_[used_].size() >= size, "a collective operation that has grown");
    return copies_[used_++].data();
  }
  std::vector<std::vector<std::byte>> copies_;
  std::size_t used_ = 0;
};

class ScatterKernel final : public StartKernel<ScatterPiece> {
  using StartKernel::StartKernel;
  void run(const KernelArguments& a) override {
    begin();
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const ShardCut& cut = pieces_[i].cut;
      pieces_[i].full = outward(a.inputs[i], bytes(cut.numel));
      pieces_[i].shard = inward(a.outputs[i], bytes(cut.length(communicator_.rank())));
    }
    started_->ticket = communicator_.start_reduce_scatter(dtype_, pieces_);
  }
};

class GatherKernel final : public StartKernel<GatherPiece> {
  using StartKernel::StartKernel;
  void run(const KernelArguments& a) override {
    begin();
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const ShardCut& cut = pieces_[i].cut;
      pieces_[i].shard = outward(a.inputs[i], bytes(cut.length(communicator_.rank())));
      pieces_[i].full = inward(a.outputs[i], bytes(cut.numel));
    }
    started_->ticket = communicator_.start_all_gather(dtype_, pieces_);
  }
};

class ReduceKernel final : public StartKernel<ReducePiece> {
  using StartKernel::StartKernel;
  void run(const KernelArguments& a) override {
    begin();
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const std::size_t size = bytes(pieces_[i].numel);
      std::byte* at = outward(a.outputs[i], size);
      pieces_[i].data = inward(a.outputs[i], size, at);
    }
    started_->ticket = communicator_.start_all_reduce(dtype_, pieces_);
  }
};

class WaitKernel final : public Kernel {
 public:
  WaitKernel(Device& device, Communicator& communicator, StartedCell started)
      : device_(device), communicator_(communicator), started_(std::move(started)) {}
  void run(const KernelArguments&) override {
    communicator_.wait(started_->ticket);
    for (const Collectives::Back& back : started_->back) device_.copy_in(back.device, {back.host, back.bytes});
    started_->back.clear();
  }

 private:
  Device& device_;
  Communicator& communicator_;
  StartedCell started_;
};

}  // namespace

std::unique_ptr<Kernel> Collectives::prepare(const CollectiveOp& op, Specs inputs,
                                             std::span<const TensorSpec> outputs) {
  check(communicator_ != nullptr, "a program of several ranks needs a communicator");
  StartedCell& started = started_[op.number];
  if (!started) started = std::make_shared<Started>();
  if (dynamic_cast<const CollectiveWait*>(&op) != nullptr)
    return std::make_unique<WaitKernel>(device_, *communicator_, started);
  const DType dtype = inputs[0]->dtype;
  if (const auto* scatter = dynamic_cast<const ReduceScatterStart*>(&op)) {
    std::vector<ScatterPiece> pieces;
    for (const ShardCut& cut : scatter->cuts) pieces.push_back({nullptr, nullptr, cut});
    return std::make_unique<ScatterKernel>(device_, *communicator_, started, dtype, std::move(pieces));
  }
  if (const auto* gather = dynamic_cast<const AllGatherStart*>(&op)) {
    std::vector<GatherPiece> pieces;
    for (const ShardCut& cut : gather->cuts) pieces.push_back({nullptr, nullptr, cut});
    return std::make_unique<GatherKernel>(device_, *communicator_, started, dtype, std::move(pieces));
  }
  std::vector<ReducePiece> pieces;
  for (const TensorSpec& spec : outputs) pieces.push_back({nullptr, spec.numel()});
  return std::make_unique<ReduceKernel>(device_, *communicator_, started, dtype, std::move(pieces));
}

}  // namespace convoy
