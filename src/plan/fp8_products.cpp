#include "plan/fp8_products.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "graph/ops/fp8.h"

namespace convoy {

std::vector<ValueId> weights_for_fp8(const Model& model, const ModelGraph& built) {
  std::set<std::size_t> adapters;
  for (const FileTensor& tensor : model.file_tensors()) {
    if (tensor.adapter) adapters.insert(tensor.parameter);
  }
  std::vector<ValueId> weights;
  for (std::size_t p = 0; p < built.weights.size(); ++p) {
    if (!adapters.contains(p)) weights.push_back(built.weights[p]);
  }
  return weights;
}

std::vector<LeftProduct> products_left_by_fp8(const Model& model, const TrainShape& shape) {
  std::vector<LeftProduct> all;
  bool any = false;
  for (std::size_t bucket = 0; bucket < shape.buckets(); ++bucket) {
    const TrainShape each = shape.of_bucket(bucket);
    ModelGraph built = model.build(graph_options(each, GraphKind::kTrain, each.rows));
    for (LeftProduct& product : quantize_products(built.graph, weights_for_fp8(model, built))) {
      const auto same = [&](const LeftProduct& known) { return known.weight == product.weight; };
      if (std::none_of(all.begin(), all.end(), same)) all.push_back(std::move(product));
    }
    const std::vector<Node>& nodes = built.graph.nodes();
    any = any || std::any_of(nodes.begin(), nodes.end(), [](const Node& node) {
            return dynamic_cast<const Fp8Product*>(node.op.get()) != nullptr;
          });
  }
  if (any) return all;
  throw usage_error(fmt::format("no product of the model can be computed in fp8{}",
                                all.empty() ? "" : fmt::format(": '{}' cannot, {}", all[0].weight, all[0].why)))
      .at("fp8")
      .mend(fmt::format("make the tokens of a micro-batch (rows times seq_length) a multiple of {}, or leave fp8 out",
                        kFp8Alignment));
}

}  // namespace convoy
