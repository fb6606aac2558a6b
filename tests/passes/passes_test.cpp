#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "graph/ops/activation.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/linear.h"
#include "graph/ops/norm.h"
#include "passes/differentiate.h"
#include "passes/fuse.h"
#include "passes/order.h"
#include "passes/place.h"
#include "plan/fit_recompute.h"
#include "plan/memory_report.h"
#include "plan/program_set.h"

namespace convoy {
namespace {

class NoWorkspace final : public WorkspaceSizes {
 public:
  std::size_t workspace(const Op& /*op*/, Specs /*inputs*/, std::span<const TensorSpec> /*outputs*/) const override {
    return 128;
  }
};

Json qwen2(std::int64_t layers) {
  return Json{{"model_type", "qwen2"},    {"vocab_size", 512},           {"hidden_size", 64},
              {"intermediate_size", 160}, {"num_hidden_layers", layers}, {"num_attention_heads", 4},
              {"num_key_value_heads", 2}, {"tie_word_embeddings", true}};
}

constexpr MachineRates kRates{6e14, 4e14, 4e12};

Graph training_graph(const Model& model, const RecomputeOptions& choice) {
  GraphOptions options;
  options.tokens = 128;
  options.table_length = 64;
  ModelGraph built = model.build(options);
  const ValueId scale = built.graph.add_source(Role::kBatch, batch_input::kLossScale, {DType::kF32, {1}});
  differentiate(built.graph, {{{built.result, scale}}, built.weights, false});
  recompute(built.graph, choice);
  return std::move(built.graph);
}

// Every input is a source or was made by an earlier node.
void expect_ordered(const Graph& graph) {
  std::set<ValueId> made;
  for (const Node& node : graph.nodes()) {
    for (ValueId id : node.inputs) {
      if (id == kNoValue || graph.value(id).producer < 0) continue;
      EXPECT_TRUE(made.count(id)) << node.op->name() << " reads what is not there";
    }
    made.insert(node.outputs.begin(), node.outputs.end());
  }
}

std::size_t live_bytes(const Graph& graph) {
  return largest_live_set(lifetimes(graph), graph.nodes().size());
}

template <typename O>
int count_nodes(const Graph& graph) {
  int count = 0;
  for (const Node& node : graph.nodes()) count += dynamic_cast<const O*>(node.op.get()) != nullptr;
  return count;
}

TEST(Differentiate, GivesEveryWeightAGradient) {
  const auto model = make_model(qwen2(3), "test");
  const Graph graph = training_graph(*model, {RecomputeMode::kNone});
  expect_ordered(graph);
  std::set<std::string> gradients;
  for (ValueId id : graph.outputs) {
    if (graph.value(id).role == Role::kGradient) gradients.insert(graph.value(id).name);
  }
  EXPECT_EQ(gradients.size(), model->parameters().size());
}

TEST(Recompute, TradesArithmeticForMemory) {
  const auto model = make_model(qwen2(6), "test");
  Graph none = training_graph(*model, {RecomputeMode::kNone});
  Graph selective = training_graph(*model, {RecomputeMode::kSelective});
  Graph full = training_graph(*model, {RecomputeMode::kFull});
  for (Graph* graph : {&none, &selective, &full}) {
    expect_ordered(*graph);
    fuse(*graph);
    expect_ordered(*graph);
    order(*graph);
    expect_ordered(*graph);
  }
  EXPECT_LT(live_bytes(selective), live_bytes(none));
  EXPECT_LT(live_bytes(full), live_bytes(selective));
  EXPECT_EQ(count_nodes<Linear>(none), 6 * 4);
  EXPECT_EQ(count_nodes<Linear>(selective), 6 * 4);  // only cheap operations run twice
  EXPECT_EQ(count_nodes<SwiGlu>(selective), 6 * 2);
  // A block's last product need not run again: the block's output is kept.
  EXPECT_EQ(count_nodes<Linear>(full), 6 * 4 + 6 * 3);
}

TEST(Recompute, StepsSaveMemoryForTimeInOrder) {
  const auto model = make_model(qwen2(6), "test");
  const std::vector<RecomputeStep> steps = recompute_steps(training_graph(*model, {}), kRates);
  ASSERT_GT(steps.size(), 6u * 2);
  std::set<ValueId> dropped;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    EXPECT_GT(steps[s].bytes, 0);
    for (const ValueId id : steps[s].dropped) EXPECT_TRUE(dropped.insert(id).second) << "dropped twice";
    if (s > 0) {
      EXPECT_LE(steps[s - 1].seconds / steps[s - 1].bytes, steps[s].seconds / steps[s].bytes * (1 + 1e-9));
    }
  }
  const auto take = [&](std::size_t count) {
    Graph graph = training_graph(*model, {RecomputeMode::kFit, static_cast<std::int64_t>(count), kRates});
    expect_ordered(graph);
    fuse(graph);
    order(graph);
    expect_ordered(graph);
    return graph;
  };
  // No step costs nothing; all of them save what whole blocks do, for no more products.
  EXPECT_EQ(count_nodes<Linear>(take(0)), 6 * 4);
  Graph full = training_graph(*model, {RecomputeMode::kFull});
  fuse(full);
  order(full);
  const Graph all = take(steps.size());
  EXPECT_LE(static_cast<double>(live_bytes(all)), 1.02 * static_cast<double>(live_bytes(full)));
  EXPECT_LE(count_nodes<Linear>(all), count_nodes<Linear>(full));
  const std::size_t few = live_bytes(take(steps.size() / 3)), more = live_bytes(take(2 * steps.size() / 3));
  EXPECT_LT(few, live_bytes(take(0)));
  EXPECT_LT(more, few);
  EXPECT_LT(live_bytes(all), more);
}

// Slow memory makes products cheap beside traffic: what is dropped first follows the machine.
TEST(Recompute, StepsFollowTheMachine) {
  const auto model = make_model(qwen2(2), "test");
  const Graph graph = training_graph(*model, {});
  const auto first_products = [&](const MachineRates& rates) {
    std::vector<bool> products;
    for (const RecomputeStep& step : recompute_steps(graph, rates)) {
      bool any = false;
      for (const ValueId id : step.dropped)
        any |= dynamic_cast<const Linear*>(graph.node(graph.value(id).producer).op.get()) != nullptr;
      products.push_back(any);
    }
    return std::distance(products.begin(), std::find(products.begin(), products.end(), true));
  };
  EXPECT_LT(first_products({1e18, 1e18, 1e9}), first_products({1e9, 1e9, 1e18}));
}

TEST(Memory, FitTakesTheLeastRecomputation) {
  const NoWorkspace workspaces;
  const auto model = make_model(qwen2(6), "test");
  TrainShape shape;
  shape.rows = 4;
  shape.seq = 64;
  shape.rates = kRates;
  const auto total = [&](RecomputeMode mode, std::int64_t steps) {
    TrainShape tried = shape;
    tried.recompute = mode;
    tried.recompute_steps = steps;
    return make_programs(*model, tried, workspaces).sizes.total();
  };
  const std::size_t most = total(RecomputeMode::kNone, 0), least = total(RecomputeMode::kFull, 0);
  shape.recompute = RecomputeMode::kFit;
  const auto all = static_cast<std::int64_t>(recompute_steps(*model, shape).size());
  EXPECT_EQ(fitting_recompute_steps(*model, shape, workspaces, {most}), 0);
  EXPECT_EQ(fitting_recompute_steps(*model, shape, workspaces, {1000}), all);
  std::int64_t before = 0;
  for (int tenths = 9; tenths >= 2; --tenths) {
    const std::size_t limit = least + (most - least) * static_cast<std::size_t>(tenths) / 10;
    const std::int64_t steps = fitting_recompute_steps(*model, shape, workspaces, {limit});
    EXPECT_LE(total(RecomputeMode::kFit, steps), limit) << tenths;
    EXPECT_GT(total(RecomputeMode::kFit, steps - 1), limit) << tenths;
    EXPECT_GE(steps, before);
    EXPECT_LT(steps, all);
    before = steps;
  }
}

TEST(Fuse, MergesResidualsAndActivations) {
  const auto model = make_model(qwen2(3), "test");
  Graph graph = training_graph(*model, {RecomputeMode::kNone});
  const int adds = count_nodes<Add>(graph);
  const int norms = count_nodes<RmsNorm>(graph);
  fuse(graph);
  EXPECT_EQ(count_nodes<Add>(graph), adds - 6);  // every residual of the forward pass is followed by a norm
  EXPECT_EQ(count_nodes<RmsNorm>(graph), norms);
}

TEST(Order, KeepsReadersOfABufferBeforeItsNextVersion) {
  // g1 = dW(x, dy) into buffer "w"; a reader of g1; then a second dW adds into the same buffer.
  Graph graph;
  const ValueId x = graph.add_source(Role::kBatch, "x", {DType::kF32, {4, 8}});
  const ValueId dy = graph.add_source(Role::kBatch, "dy", {DType::kF32, {4, 8}});
  const ValueId start = graph.add_source(Role::kGradient, "w", {DType::kF32, {8, 8}});
  const ValueId first = graph.add_op(LinearWeightGrad{false}, {x, dy, start})[0];
  const ValueId copy = graph.add_op(Scale{2.0}, {first})[0];
  const ValueId second = graph.add_op(LinearWeightGrad{false}, {x, dy, first})[0];
  graph.outputs = {copy, second};
  order(graph);
  std::vector<std::string> names;
  for (const Node& node : graph.nodes()) names.emplace_back(node.op->name());
  EXPECT_EQ(names, (std::vector<std::string>{"linear_dw", "scale", "linear_dw"}));
}

TEST(Programs, PlacementIsNearTheBound) {
  const NoWorkspace workspaces;
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
    const auto model = make_model(qwen2(8), "test");
    TrainShape shape;
    shape.rows = 4;
    shape.seq = 64;
    shape.recompute = mode;
    const ProgramSet set = make_programs(*model, shape, workspaces);
    EXPECT_LE(static_cast<double>(set.micro.activation_bytes),
              1.03 * static_cast<double>(set.micro.activation_lower_bound))
        << name_of(mode);
  }
}

TEST(Programs, PrintReadably) {
  const NoWorkspace workspaces;
  const auto model = make_model(qwen2(1), "test");
  TrainShape shape;
  shape.seq = 64;
  const std::string text = print(make_programs(*model, shape, workspaces).micro);
  EXPECT_NE(text.find("program micro-batch:"), std::string::npos) << text;
  EXPECT_NE(text.find("attention {heads=4/2x16 causal}"), std::string::npos) << text;
  EXPECT_NE(text.find("backward  block 0   "), std::string::npos) << text;
}

TEST(Programs, GradientSlotsFollowTheTree) {
  EXPECT_EQ(tree_slots(1), 1u);
  EXPECT_EQ(tree_slots(2), 2u);
  EXPECT_EQ(tree_slots(3), 2u);
  EXPECT_EQ(tree_slots(4), 3u);
  EXPECT_EQ(tree_slots(7), 3u);
  EXPECT_EQ(tree_slots(8), 4u);
}

TEST(Memory, ReportAddsUpAndAlternativesSave) {
  const NoWorkspace workspaces;
  const auto model = make_model(qwen2(4), "test");
  TrainShape shape;
  shape.rows = 8;
  shape.seq = 64;
  shape.accumulation = 2;
  const ProgramSet set = make_programs(*model, shape, workspaces);
  const MemoryReport report = memory_report(set.sizes, set.activation_lower_bound);
  EXPECT_EQ(report.total, set.sizes.total());
  const auto others = alternatives(*model, shape, workspaces);
  ASSERT_FALSE(others.empty());
  for (const Alternative& other : others) EXPECT_LT(other.total, report.total) << other.settings;
  EXPECT_NO_THROW(require_fit(*model, shape, workspaces, report, {report.total}));
  try {
    require_fit(*model, shape, workspaces, report, {others.front().total});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kDoesNotFit);
    EXPECT_NE(error.remedy().find(others.front().settings), std::string::npos) << error.what();
  }
  try {
    require_fit(*model, shape, workspaces, report, {1000});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.remedy().find("no setting makes it fit"), std::string::npos);
  }
}

}  // namespace
}  // namespace convoy
