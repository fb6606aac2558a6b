// Which kernel of a device runs which operation.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "runtime/device.h"

namespace convoy {

// The shapes that a kernel is made for.
struct KernelRequest {
  Specs inputs;
  std::span<const TensorSpec> outputs;
  bool has(std::size_t i) const { return i < inputs.size() && inputs[i] != nullptr; }
};

class KernelRegistry {
 public:
  // `device` names it in errors.
  explicit KernelRegistry(std::string device) : device_(std::move(device)) {}

  // `make(const O&, const KernelRequest&)` returns a callable taking KernelArguments; `workspace` returns bytes.
  template <typename O, typename Make, typename Workspace>
  void add(Make make_kernel, Workspace workspace_rule) {
    entries_[typeid(O)] = {[make_kernel](const Op& op, const KernelRequest& request) {
                             return wrap(make_kernel(static_cast<const O&>(op), request));
                           },
                           [workspace_rule](const Op& op, const KernelRequest& request) -> std::size_t {
                             return workspace_rule(static_cast<const O&>(op), request);
                           }};
  }
  template <typename O, typename Make>
  void add(Make make_kernel) {
    add<O>(make_kernel, [](const O&, const KernelRequest&) { return std::size_t{0}; });
  }

  std::unique_ptr<Kernel> make(const Op& op, const KernelRequest& request) const { return find(op).make(op, request); }
  std::size_t workspace(const Op& op, const KernelRequest& request) const { return find(op).workspace(op, request); }

 private:
  struct Entry {
    std::function<std::unique_ptr<Kernel>(const Op&, const KernelRequest&)> make;
    std::function<std::size_t(const Op&, const KernelRequest&)> workspace;
  };
  template <typename F>
  static std::unique_ptr<Kernel> wrap(F body) {
    struct Wrapped final : Kernel {
      explicit Wrapped(F f) : function(std::move(f)) {}
      void run(const KernelArguments& arguments) override { function(arguments); }
      F function;
    };
    return std::make_unique<Wrapped>(std::move(body));
  }
  const Entry& find(const Op& op) const {
    const auto place = entries_.find(typeid(op));
    if (place == entries_.end())
      throw internal_error("the " + device_ + " device has no kernel for " + std::string(op.name()));
    return place->second;
  }

  std::string device_;
  std::unordered_map<std::type_index, Entry> entries_;
};

}  // namespace convoy
