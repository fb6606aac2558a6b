// A CPU device whose copy lanes do nothing before somebody waits for them: what reads a buffer that is not awaited, or
// gives up one that is still copied from, meets the wrong bytes. The CPU device itself is the other extreme: its copies
// are done when they are started.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "base/error.h"
#include "cpu/cpu_device.h"

namespace convoy::testing {

class LateDevice final : public Device {
 public:
  std::string name() const override { return "late " + cpu_.name(); }
  std::unique_ptr<DeviceMemory> allocate(std::size_t bytes) override { return cpu_.allocate(bytes); }
  std::unique_ptr<DeviceMemory> allocate_host(std::size_t bytes) override { return cpu_.allocate_host(bytes); }
  MemoryUse memory() const override { return cpu_.memory(); }
  std::unique_ptr<Kernel> prepare(const Op& op, Specs inputs, std::span<const TensorSpec> outputs) override {
    return cpu_.prepare(op, inputs, outputs);
  }
  std::size_t workspace(const Op& op, Specs inputs, std::span<const TensorSpec> outputs) const override {
    return cpu_.workspace(op, inputs, outputs);
  }
  void copy_in(std::byte* to, std::span<const std::byte> from) override { cpu_.copy_in(to, from); }
  void copy_out(std::span<std::byte> to, const std::byte* from) override {
    synchronize();
    cpu_.copy_out(to, from);
  }
  void start_copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    cpu_.start_copy(to, from, bytes);
  }
  void start_copy_in(std::byte* to, std::span<const std::byte> from, Lane lane) override {
    start(lane, [this, to, from] { cpu_.copy_in(to, from); });
  }
  void start_copy_out(std::span<std::byte> to, const std::byte* from, Lane lane) override {
    start(lane, [this, to, from] { cpu_.copy_out(to, from); });
  }
  std::unique_ptr<Mark> make_mark() override { return std::make_unique<Place>(); }
  void set_mark(Mark& mark, Lane lane) override { static_cast<Place&>(mark) = {lane, waiting(lane).size()}; }
  // The kernels' lane is always up to date.
  void await_mark(Mark& mark, Lane lane) override {
    const auto& place = static_cast<const Place&>(mark);
    if (place.lane == Lane::kWork) return;
    check(lane == Lane::kWork, "a copy lane that waits for the other one");
    finish(place.lane, place.after);
  }
  void synchronize() override {
    for (const Lane lane : {Lane::kToDevice, Lane::kToHost}) finish(lane, waiting(lane).size());
  }
  std::size_t late_copies() const { return late_copies_; }

 private:
  struct Place final : Mark {
    Place() = default;
    Place(Lane of, std::size_t copies) : lane(of), after(copies) {}
    Lane lane = Lane::kWork;
    std::size_t after = 0;  // copies of the lane
  };
  struct Copies {
    std::vector<std::function<void()>> all;
    std::size_t done = 0;
    std::size_t size() const { return all.size(); }
  };
  Copies& waiting(Lane lane) { return lanes_[static_cast<std::size_t>(lane)]; }
  void start(Lane lane, std::function<void()> copy) {
    if (lane == Lane::kWork) return copy();
    waiting(lane).all.push_back(std::move(copy));
    ++late_copies_;
  }
  void finish(Lane lane, std::size_t count) {
    Copies& copies = waiting(lane);
    for (; copies.done < count; ++copies.done) copies.all[copies.done]();
  }

  CpuDevice cpu_;
  std::array<Copies, 3> lanes_;
  std::size_t late_copies_ = 0;
};

}  // namespace convoy::testing
