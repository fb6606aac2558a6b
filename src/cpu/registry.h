// Which kernel runs which operation on the CPU. Each ops_*.cpp file registers its own.
#pragma once

#include <functional>
#include <memory>
#include <typeindex>
#include <unordered_map>
#include <utility>

#include "runtime/device.h"

namespace convoy::cpu {

// The shapes that a kernel is made for.
struct Request {
  Specs inputs;
  std::span<const TensorSpec> outputs;
  bool has(std::size_t i) const { return i < inputs.size() && inputs[i] != nullptr; }
};

class Registry {
 public:
  // `make(const O&, const Request&)` returns a callable taking KernelArguments; `workspace` returns bytes.
  template <typename O, typename Make, typename Workspace>
  void add(Make make_kernel, Workspace workspace_rule) {
    entries_[typeid(O)] = {[make_kernel](const Op& op, const Request& request) {
                             return wrap(make_kernel(static_cast<const O&>(op), request));
                           },
                           [workspace_rule](const Op& op, const Request& request) -> std::size_t {
                             return workspace_rule(static_cast<const O&>(op), request);
                           }};
  }
  template <typename O, typename Make>
  void add(Make make_kernel) {
    add<O>(make_kernel, [](const O&, const Request&) { return std::size_t{0}; });
  }

  std::unique_ptr<Kernel> make(const Op& op, const Request& request) const { return find(op).make(op, request); }
  std::size_t workspace(const Op& op, const Request& request) const { return find(op).workspace(op, request); }

 private:
  struct Entry {
    std::function<std::unique_ptr<Kernel>(const Op&, const Request&)> make;
    std::function<std::size_t(const Op&, const Request&)> workspace;
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
  const Entry& find(const Op& op) const;
  std::unordered_map<std::type_index, Entry> entries_;
};

void register_elementwise(Registry& registry);
void register_norms(Registry& registry);
void register_embedding(Registry& registry);
void register_linear(Registry& registry);
void register_attention(Registry& registry);
void register_head(Registry& registry);
void register_update(Registry& registry);
void register_compress(Registry& registry);

// Fixed cuts of work: functions of the shape alone, so that results do not depend on the number of threads.
inline std::int64_t pieces(std::int64_t total, std::int64_t size) {
  return (total + size - 1) / size;
}

}  // namespace convoy::cpu
