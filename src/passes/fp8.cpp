#include "passes/fp8.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "graph/ops/fp8.h"
#include "graph/ops/linear.h"

namespace convoy {
namespace {

using Keep = Fp8Quantize::Keep;
using Kind = Fp8Product::Kind;

class Quantization {
 public:
  Quantization(Graph& graph, const std::vector<ValueId>& weights)
      : graph_(graph), asked_(weights.begin(), weights.end()) {}

  std::vector<LeftProduct> run() {
    std::vector<LeftProduct> left = choose_weights();
    find_backward_readers();
    for (const Node& node : graph_.nodes()) {
      block_ = node.block;
      phase_ = node.phase;
      if (const auto* op = dynamic_cast<const Linear*>(node.op.get()); op != nullptr && chosen(node.inputs[1])) {
        forward(node, *op);
      } else if (const auto* dx = dynamic_cast<const LinearInputGrad*>(node.op.get());
                 dx != nullptr && chosen(node.inputs[1])) {
        input_gradient(node, *dx);
      } else if (const auto* dw = dynamic_cast<const LinearWeightGrad*>(node.op.get());
                 dw != nullptr && chosen(weight_of(node))) {
        weight_gradient(node, *dw);
      } else {
        made_.push_back(node);
      }
    }
    set_nodes(graph_, std::move(made_));
    return left;
  }

 private:
  bool chosen(ValueId weight) const { return chosen_.contains(weight); }

  // The weight that a product's result is the gradient of: it has its name.
  ValueId weight_of(const Node& gradient) const {
    const Value& value = graph_.value(gradient.outputs[0]);
    if (value.role != Role::kGradient) return kNoValue;
    const auto found = by_name_.find(value.name);
    return found == by_name_.end() ? kNoValue : found->second;
  }

  // Why a product cannot be one of codes, or "".
  std::string obstacle(const Node& node) const {
    const Shape& x = graph_.spec(node.inputs[0]).shape;
    const Shape& weight = graph_.spec(node.inputs[1]).shape;
    const auto odd = [](std::int64_t count) { return count % kFp8Alignment != 0; };
    if (odd(x[0])) return fmt::format("its {} rows are no multiple of {}", x[0], kFp8Alignment);
    if (odd(weight[0]) || odd(weight[1]))
      return fmt::format("{} are not both multiples of {}", weight.str(), kFp8Alignment);
    return node.block < 0 ? "it is outside the transformer blocks" : "";
  }

  std::vector<LeftProduct> choose_weights() {
    std::vector<LeftProduct> left;
    std::set<ValueId> refused;
    for (const Node& node : graph_.nodes()) {
      if (dynamic_cast<const Linear*>(node.op.get()) == nullptr || !asked_.contains(node.inputs[1])) continue;
      const ValueId weight = node.inputs[1];
      const std::string why = obstacle(node);
      if (why.empty()) {
        chosen_.insert(weight);
      } else if (refused.insert(weight).second) {
        left.push_back({graph_.value(weight).name, why});
      }
    }
    for (ValueId weight : refused) chosen_.erase(weight);
    for (ValueId weight : chosen_) by_name_[graph_.value(weight).name] = weight;
    return left;
  }

  // What the backward pass reads in bf16 whatever becomes of the products, and whose transposed codes it wants.
  void find_backward_readers() {
    for (const Node& node : graph_.nodes()) {
      if (node.phase != Phase::kBackward) continue;
      if (dynamic_cast<const LinearWeightGrad*>(node.op.get()) != nullptr && chosen(weight_of(node))) {
        wants_transposed_.insert(node.inputs[0]);
      } else {
        read_backward_.insert(node.inputs.begin(), node.inputs.end());
      }
    }
  }

  ValueId emit(std::shared_ptr<const Op> op, std::vector<ValueId> inputs, const std::string& name) {
    Node node = graph_.make(std::move(op), std::move(inputs), {name});
    node.block = block_;
    node.phase = phase_;
    made_.push_back(std::move(node));
    return made_.back().outputs[0];
  }

  // Once in a block: recomputation keeps what crosses its border. A scale is the same in both phases.
  ValueId scale(ValueId x, DType to) {
    ValueId& known = scales_.try_emplace({x, block_}, kNoValue).first->second;
    if (known == kNoValue) known = emit(std::make_shared<const Fp8Scale>(to), {x}, graph_.value(x).name + ".scale");
    return known;
  }

  ValueId codes(ValueId x, DType to, Keep keep) {
    ValueId& known = codes_.try_emplace({x, block_, phase_, keep}, kNoValue).first->second;
    if (known != kNoValue) return known;
    const ValueId of = scale(x, to);
    const char* ending = keep == Keep::kRows ? ".fp8" : ".fp8ᵀ";
    known = emit(std::make_shared<const Fp8Quantize>(to, keep), {x, of}, graph_.value(x).name + ending);
    return known;
  }

  // In the place of `node`, whose results keep their identity.
  void replace(const Node& node, const Fp8Product& op, std::vector<ValueId> inputs) {
    Node made{std::make_shared<const Fp8Product>(op), std::move(inputs), node.outputs, node.block, node.phase};
    check(made.op->infer(graph_.input_specs(made)) == graph_.output_specs(node), "fp8: a product changed its shape");
    made_.push_back(std::move(made));
  }

  void forward(const Node& node, const Linear& op) {
    check(op.activation == Activation::kNone, "products are quantized before fusion");
    const ValueId x = node.inputs[0], weight = node.inputs[1];
    const ValueId bias = node.inputs.size() > 2 ? node.inputs[2] : kNoValue;
    const ValueId a = codes(x, DType::kF8E4M3, Keep::kRows);
    if (wants_transposed_.contains(x) && !read_backward_.contains(x))
      saved_[{x, block_}] = codes(x, DType::kF8E4M3, Keep::kTransposed);
    const ValueId b = codes(weight, DType::kF8E4M3, op.transposed ? Keep::kTransposed : Keep::kRows);
    replace(node, Fp8Product(Kind::kForward),
            {a, b, scale(x, DType::kF8E4M3), scale(weight, DType::kF8E4M3), bias, kNoValue});
  }

  void input_gradient(const Node& node, const LinearInputGrad& op) {
    const ValueId dy = node.inputs[0], weight = node.inputs[1];
    const ValueId sum = node.inputs.size() > 2 ? node.inputs[2] : kNoValue;
    const ValueId a = codes(dy, DType::kF8E5M2, Keep::kRows);
    const ValueId b = codes(weight, DType::kF8E4M3, op.transposed ? Keep::kRows : Keep::kTransposed);
    replace(node, Fp8Product(Kind::kInputGrad),
            {a, b, scale(dy, DType::kF8E5M2), scale(weight, DType::kF8E4M3), kNoValue, sum});
  }

  void weight_gradient(const Node& node, const LinearWeightGrad& op) {
    const ValueId x = node.inputs[0], dy = node.inputs[1];
    const ValueId sum = node.inputs.size() > 2 ? node.inputs[2] : kNoValue;
    const auto saved = saved_.find({x, block_});
    std::pair<ValueId, ValueId> a{codes(dy, DType::kF8E5M2, Keep::kTransposed), scale(dy, DType::kF8E5M2)};
    std::pair<ValueId, ValueId> b{saved != saved_.end() ? saved->second : codes(x, DType::kF8E4M3, Keep::kTransposed),
                                  scale(x, DType::kF8E4M3)};
    if (op.transposed) std::swap(a, b);
    replace(node, Fp8Product::weight_grad(op.narrow), {a.first, b.first, a.second, b.second, kNoValue, sum});
  }

  Graph& graph_;
  const std::set<ValueId> asked_;
  std::set<ValueId> chosen_;  // weights
  std::map<std::string, ValueId> by_name_;
  std::set<ValueId> wants_transposed_, read_backward_;
  std::map<std::pair<ValueId, int>, ValueId> scales_, saved_;  // by value and block
  std::map<std::tuple<ValueId, int, Phase, Keep>, ValueId> codes_;
  std::vector<Node> made_;
  int block_ = -1;
  Phase phase_ = Phase::kForward;
};

}  // namespace

std::vector<LeftProduct> quantize_products(Graph& graph, const std::vector<ValueId>& weights) {
  return Quantization(graph, weights).run();
}

}  // namespace convoy
