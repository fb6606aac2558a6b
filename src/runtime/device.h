// A device runs programs. The executor knows devices through this interface alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "program/program.h"

namespace convoy {

// Raw memory of a device, freed with the object.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::byte* data() const = 0;
  virtual std::size_t bytes() const = 0;
};

struct MemoryUse {
  std::size_t current = 0;
  std::size_t peak = 0;
};

// Memory that its device's figures count while it lives.
class CountedMemory : public DeviceMemory {
 public:
  ~CountedMemory() override { use_.current -= bytes_; }
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;
  std::byte* data() const override { return data_; }
  std::size_t bytes() const override { return bytes_; }

 protected:
  // `data` was taken by the caller, whose destructor gives it back.
  CountedMemory(std::byte* data, std::size_t bytes, MemoryUse& use) : data_(data), bytes_(bytes), use_(use) {
    use_.current += bytes_;
    use_.peak = use_.peak > use_.current ? use_.peak : use_.current;
  }

 private:
  std::byte* data_;
  std::size_t bytes_;
  MemoryUse& use_;
};

// The operands of one run of a kernel; absent operands are null.
struct KernelArguments {
  std::span<std::byte* const> inputs;
  std::span<std::byte* const> outputs;
  std::byte* workspace;
};

// An instruction made ready for its shapes. Running it allocates nothing.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run(const KernelArguments& arguments) = 0;
};

// Instructions that a device has recorded, to be run again as one.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;
};

// What is started in one lane runs in the order of starting; the copy lanes run beside the kernels of kWork and beside
// one another.
enum class Lane : std::uint8_t { kWork, kToDevice, kToHost };

class Device : public WorkspaceSizes {
 public:
  virtual std::string name() const = 0;
  // The hardware as its maker names it, by which measurements are told apart.
  virtual std::string card() const { return name(); }
  // The PCI bus id of a GPU, under which its driver's statistics are; empty for other devices.
  virtual std::string bus_id() const { return {}; }
  // Zeroed memory, 64-byte aligned. Throws an error of status does-not-fit.
  virtual std::unique_ptr<DeviceMemory> allocate(std::size_t bytes) = 0;
  // What allocate has given out.
  virtual MemoryUse memory() const = 0;
  // Bytes of its own memory that a rank may take now; nothing where the device's memory is the host's.
  virtual std::optional<std::size_t> own_memory() const { return std::nullopt; }
  virtual std::unique_ptr<Kernel> prepare(const Op& op, Specs inputs, std::span<const TensorSpec> outputs) = 0;
  virtual void copy_in(std::byte* to, std::span<const std::byte> from) = 0;
  virtual void copy_out(std::span<std::byte> to, const std::byte* from) = 0;
  // Zeroed host memory that the device reads and writes by itself, its kernels too (page-locked, where the device is
  // apart from the host): for copies and for what is offloaded. memory() does not count it. Throws an error of status
  // does-not-fit.
  virtual std::unique_ptr<DeviceMemory> allocate_host(std::size_t bytes) = 0;
  // Copies that are started only: done after synchronize(). The host's side lies in memory of allocate_host.
  virtual void start_copy_in(std::byte* to, std::span<const std::byte> from, Lane /*lane*/) { copy_in(to, from); }
  virtual void start_copy_out(std::span<std::byte> to, const std::byte* from, Lane /*lane*/) { copy_out(to, from); }
  // A point in the order of a lane, which may be set again and again; recordings keep it.
  class Mark {
   public:
    virtual ~Mark() = default;
  };
  virtual std::unique_ptr<Mark> make_mark() { return std::make_unique<Mark>(); }
  // After all that was started in `lane` so far.
  virtual void set_mark(Mark& /*mark*/, Lane /*lane*/) {}
  // What is started in `lane` from now on comes after the mark. Devices whose copies are done when they are started
  // need neither.
  virtual void await_mark(Mark& /*mark*/, Lane /*lane*/) {}
  // Within the device's memory, in the lane of the kernels.
  virtual void start_copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // From the memory of another device of this kind, in a lane of its own; false where there is no link between the two.
  virtual bool start_peer_copy(std::byte* /*to*/, const Device& /*owner*/, const std::byte* /*from*/,
                               std::size_t /*bytes*/) {
    return false;
  }
  // Whether the host reads and writes the device's memory as its own.
  virtual bool host_memory() const { return true; }
  // Waits for everything that was started.
  virtual void synchronize() = 0;

  // What the host knows of the batch that the next programs read: whether every document is a whole row. A device may
  // have faster kernels for that.
  virtual void set_whole_rows(bool /*whole*/) {}
  // Records what `run` starts instead of starting it (CUDA graphs); null where a device does not record. `run` has been
  // called before, with the same operands. A recording is good for the variant that it was made in.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& /*run*/) { return nullptr; }
  virtual int recording_variant() const { return 0; }
};

}  // namespace convoy
