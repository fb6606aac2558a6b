#include "graph/ops/collective.h"

#include <fmt/format.h>

#include "base/error.h"

namespace convoy {

std::string CollectiveOp::attributes() const {
  return fmt::format("#{}", number);
}

namespace {

void check_one_type(Specs in) {
  for (const TensorSpec* spec : in)
    check(spec->dtype == in[0]->dtype, "a collective operation on tensors of two types");
}

}  // namespace

std::vector<TensorSpec> ReduceScatterStart::infer(Specs in) const {
  check_one_type(in);
  check(in.size() == cuts.size(), "reduce_scatter: tensors do not match their cuts");
  std::vector<TensorSpec> out;
  for (std::size_t i = 0; i < in.size(); ++i) {
    check(in[i]->numel() == cuts[i].numel, "reduce_scatter: a tensor does not fit its cut");
    out.push_back({in[i]->dtype, {cuts[i].length(rank)}});
  }
  return out;
}

std::vector<TensorSpec> AllGatherStart::infer(Specs in) const {
  check_one_type(in);
  check(in.size() == cuts.size() && in.size() == shapes.size(), "all_gather: shards do not match their cuts");
  std::vector<TensorSpec> out;
  for (std::size_t i = 0; i < in.size(); ++i) out.push_back({in[i]->dtype, shapes[i]});
  return out;
}

std::vector<TensorSpec> AllReduceStart::infer(Specs in) const {
  check_one_type(in);
  check(in.size() == static_cast<std::size_t>(count), "all_reduce: another number of tensors was announced");
  std::vector<TensorSpec> out;
  for (const TensorSpec* spec : in) out.push_back(*spec);
  return out;
}

std::vector<Alias> AllReduceStart::aliases() const {
  std::vector<Alias> all;
  for (int i = 0; i < count; ++i) all.push_back({i, i, true});
  return all;
}

}  // namespace convoy
