#include "runtime/host_copies.h"

#include <vector>

namespace convoy {
namespace {

// What a copy reads, and what lay before where it writes, is in the order of the kernels: it starts after those so far.
// Its end is a mark that its wait puts before the kernels to come.
class StartKernel final : public Kernel {
 public:
  StartKernel(Device& device, Lane lane, std::shared_ptr<Device::Mark> done, std::span<const TensorSpec> tensors)
      : device_(device), lane_(lane), ready_(device.make_mark()), done_(std::move(done)) {
    for (const TensorSpec& spec : tensors) bytes_.push_back(spec.bytes());
  }
  void run(const KernelArguments& a) override {
    device_.set_mark(*ready_, Lane::kWork);
    device_.await_mark(*ready_, lane_);
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (lane_ == Lane::kToHost) {
        device_.start_copy_out({a.outputs[i], bytes_[i]}, a.inputs[i], lane_);
      } else {
        device_.start_copy_in(a.outputs[i], {a.inputs[i], bytes_[i]}, lane_);
      }
    }
    device_.set_mark(*done_, lane_);
  }

 private:
  Device& device_;
  const Lane lane_;
  std::unique_ptr<Device::Mark> ready_;
  std::shared_ptr<Device::Mark> done_;
  std::vector<std::size_t> bytes_;
};

class WaitKernel final : public Kernel {
 public:
  WaitKernel(Device& device, std::shared_ptr<Device::Mark> done) : device_(device), done_(std::move(done)) {}
  void run(const KernelArguments&) override { device_.await_mark(*done_, Lane::kWork); }

 private:
  Device& device_;
  std::shared_ptr<Device::Mark> done_;
};

}  // namespace

std::unique_ptr<Kernel> HostCopies::prepare(const HostCopyOp& op, std::span<const TensorSpec> outputs) {
  std::shared_ptr<Device::Mark>& done = done_[op.number];
  if (!done) done = device_.make_mark();
  if (dynamic_cast<const HostCopyWait*>(&op) != nullptr) return std::make_unique<WaitKernel>(device_, done);
  const bool out = dynamic_cast<const OffloadStart*>(&op) != nullptr;
  return std::make_unique<StartKernel>(device_, out ? Lane::kToHost : Lane::kToDevice, done, outputs);
}

}  // namespace convoy
