#include "passes/offload.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "graph/ops/host_copy.h"
#include "passes/differentiate.h"
#include "passes/fuse.h"
#include "passes/order.h"
#include "passes/place.h"
#include "passes/segments.h"
#include "plan/memory_report.h"
#include "plan/program_set.h"

namespace convoy {
namespace {

class NoWorkspace final : public WorkspaceSizes {
 public:
  std::size_t workspace(const Op& /*op*/, Specs /*inputs*/, std::span<const TensorSpec> /*outputs*/) const override {
    return 0;
  }
};

constexpr std::int64_t kTokens = 128, kHidden = 64;
constexpr std::size_t kBlockInput = kTokens * kHidden * sizeof(float);

std::unique_ptr<Model> qwen2(std::int64_t layers) {
  return make_model(Json{{"model_type", "qwen2"},
                         {"vocab_size", 512},
                         {"hidden_size", kHidden},
                         {"intermediate_size", 160},
                         {"num_hidden_layers", layers},
                         {"num_attention_heads", 4},
                         {"num_key_value_heads", 2},
                         {"tie_word_embeddings", true}},
                    "test");
}

Graph training_graph(const Model& model, RecomputeMode mode) {
  GraphOptions options;
  options.tokens = kTokens;
  options.table_length = 64;
  ModelGraph built = model.build(options);
  const ValueId scale = built.graph.add_source(Role::kBatch, batch_input::kLossScale, {DType::kF32, {1}});
  differentiate(built.graph, {{{built.result, scale}}, built.weights, false});
  recompute(built.graph, {mode, 0, {}});
  fuse(built.graph);
  order(built.graph);
  return std::move(built.graph);
}

std::size_t live_bytes(const Graph& graph, Role role = Role::kActivation) {
  return largest_live_set(lifetimes(graph, role), graph.nodes().size());
}

// Where the four instructions of each tensor that goes out stand.
struct Journey {
  std::size_t out = 0, gone = 0, back = 0, there = 0;
  ValueId original = kNoValue, fetched = kNoValue;
};

std::vector<Journey> journeys(const Graph& graph) {
  std::map<ValueId, Journey> by_host;
  std::set<int> numbers;
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (dynamic_cast<const OffloadStart*>(node.op.get()) != nullptr) {
      by_host[node.outputs[0]].out = n;
      by_host[node.outputs[0]].original = node.inputs[0];
      EXPECT_EQ(graph.value(node.outputs[0]).role, Role::kHostActivation);
      EXPECT_TRUE(numbers.insert(static_cast<const HostCopyOp&>(*node.op).number).second);
    } else if (dynamic_cast<const FetchStart*>(node.op.get()) != nullptr) {
      by_host[node.inputs[0]].back = n;
      by_host[node.inputs[0]].fetched = node.outputs[0];
      EXPECT_TRUE(numbers.insert(static_cast<const HostCopyOp&>(*node.op).number).second);
    } else if (dynamic_cast<const HostCopyWait*>(node.op.get()) != nullptr) {
      EXPECT_EQ(numbers.count(static_cast<const HostCopyOp&>(*node.op).number), 1u) << "a wait before its start";
      for (const ValueId id : node.inputs) {
        if (graph.value(id).role != Role::kHostActivation) continue;
        Journey& journey = by_host[id];
        (journey.back == 0 ? journey.gone : journey.there) = n;
      }
    }
  }
  std::vector<Journey> all;
  for (const auto& [host, journey] : by_host) all.push_back(journey);
  return all;
}

void expect_sound(const Graph& graph) {
  std::vector<std::size_t> segment;
  const std::vector<Segment> segments = cut_segments(graph);
  for (std::size_t s = 0; s < segments.size(); ++s) segment.resize(segments[s].end, s);
  for (const Journey& journey : journeys(graph)) {
    EXPECT_LT(journey.out, journey.gone);
    EXPECT_LT(journey.gone, journey.back);
    EXPECT_LT(journey.back, journey.there);
    EXPECT_GE(segment[journey.gone], segment[journey.out] + 2) << "the copy has a block of time";
    EXPECT_GE(segment[journey.back], segment[journey.gone] + 1) << "it is away for a block at least";
    EXPECT_GE(segment[journey.there], segment[journey.back] + 1) << "it comes a block ahead";
    EXPECT_GT(static_cast<NodeId>(journey.out), graph.value(journey.original).producer);
    std::size_t first_read = graph.nodes().size();
    for (std::size_t n = graph.nodes().size(); n-- > 0;) {
      const Node& node = graph.nodes()[n];
      if (dynamic_cast<const HostCopyOp*>(node.op.get()) != nullptr) continue;
      for (const ValueId id : node.inputs) {
        if (id == journey.fetched) first_read = n;
        if (id == journey.original) {
          EXPECT_LT(n, journey.gone) << "read after its memory was given up";
        }
      }
    }
    ASSERT_GT(first_read, journey.there);
    for (std::size_t n = journey.there; n < first_read; ++n)
      EXPECT_NE(dynamic_cast<const HostCopyWait*>(graph.nodes()[n].op.get()), nullptr) << "waited for too early";
  }
}

TEST(Offload, TakesTheBlocksInputsWhereBlocksAreRecomputed) {
  for (const std::int64_t layers : {4, 9}) {
    const auto model = qwen2(layers);
    Graph graph = training_graph(*model, RecomputeMode::kFull);
    const std::size_t before = live_bytes(graph), nodes = graph.nodes().size();
    offload_activations(graph, {true, 0});
    expect_sound(graph);
    // The last block's input is needed at once; of the others two are on the device: the present one, and the next.
    const auto count = static_cast<std::size_t>(layers);
    EXPECT_EQ(journeys(graph).size(), count - 1);
    EXPECT_EQ(graph.nodes().size(), nodes + 4 * (count - 1));
    EXPECT_EQ(live_bytes(graph), before - (count - 2) * kBlockInput);
    EXPECT_EQ(live_bytes(graph, Role::kHostActivation), (count - 1) * kBlockInput);
    for (const Journey& journey : journeys(graph)) EXPECT_EQ(graph.spec(journey.original).bytes(), kBlockInput);
  }
}

TEST(Offload, TakesWhatIsLargeWhereNothingIsRecomputed) {
  const auto model = qwen2(8);
  Graph kept = training_graph(*model, RecomputeMode::kNone);
  std::size_t most = 0;
  std::size_t last = SIZE_MAX;
  for (const std::size_t least : {std::size_t{0}, kBlockInput, 2 * kBlockInput, 100 * kBlockInput}) {
    Graph graph = kept;
    offload_activations(graph, {false, least});
    expect_sound(graph);
    const std::vector<Journey> taken = journeys(graph);
    for (const Journey& journey : taken) EXPECT_GE(graph.spec(journey.original).bytes(), least);
    EXPECT_LT(taken.size(), last);
    last = taken.size();
    if (least == 0) most = live_bytes(graph);
    EXPECT_GE(live_bytes(graph), most);
  }
  EXPECT_EQ(last, 0u);
  // Of eight blocks' activations, some three are on the device at once.
  EXPECT_LT(static_cast<double>(most), 0.6 * static_cast<double>(live_bytes(kept)));
}

TEST(Offload, LeavesWhatComesBackAtOnce) {
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kFull}) {
    Graph graph = training_graph(*qwen2(1), mode);
    const std::size_t nodes = graph.nodes().size();
    offload_activations(graph, {mode == RecomputeMode::kFull, 0});
    EXPECT_EQ(graph.nodes().size(), nodes);
  }
}

TEST(Offload, IsALineOfTheReportAndAnAlternative) {
  const NoWorkspace workspaces;
  const auto model = qwen2(9);
  constexpr std::size_t kInput = kBlockInput / 2;
  TrainShape shape;
  shape.seq = kTokens;
  shape.dtype = DType::kBF16;
  shape.narrow_gradients = true;  // else that is what saves the most
  shape.deterministic = false;
  shape.recompute = RecomputeMode::kFull;
  shape.has_own_memory = true;
  shape.offload_optimizer = true;
  shape.offload_least_bytes = 0;
  const auto report_of = [&] {
    const ProgramSet set = make_programs(*model, shape, workspaces);
    return memory_report(set.sizes, set.activation_lower_bound);
  };
  const MemoryReport before = report_of();
  EXPECT_EQ(print(before).find("host activations"), std::string::npos);
  shape.offload_activations = true;
  const MemoryReport after = report_of();
  EXPECT_EQ(after.total, before.total - 7 * kInput);
  EXPECT_EQ(after.host_total, before.host_total + 8 * kInput);
  EXPECT_NE(print(after).find("host activations"), std::string::npos) << print(after);
  EXPECT_NE(print(make_programs(*model, shape, workspaces).micro).find("offload {host #"), std::string::npos);

  const auto refusal = [&](const MemoryLimit& limit) -> std::string {
    try {
      require_fit(*model, shape, workspaces, report_of(), limit);
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::kDoesNotFit);
      return error.remedy();
    }
    return "fits";
  };
  EXPECT_EQ(refusal({after.total, after.host_total}), "fits");
  EXPECT_NE(refusal({after.total, after.host_total - 1}).find("--offload_activations none"), std::string::npos);
  shape.offload_activations = false;
  const std::string flag = "  --offload_activations cpu\n";
  EXPECT_NE(refusal({after.total, after.host_total}).find(flag), std::string::npos);
  EXPECT_EQ(refusal({after.total, after.host_total - 1}).find(flag), std::string::npos)
      << "the host has no room for it";
}

// What recompute: fit chooses counts what is offloaded beside.
TEST(Offload, LeavesRoomForLessRecomputation) {
  const NoWorkspace workspaces;
  const auto model = qwen2(9);
  TrainShape shape;
  shape.seq = 64;
  shape.rows = 2;
  shape.recompute = RecomputeMode::kFit;
  shape.rates = {6e14, 4e14, 4e12};
  shape.offload_least_bytes = 0;
  shape.recompute_steps = 10;
  const ProgramSet kept = make_programs(*model, shape, workspaces);
  shape.offload_activations = true;
  const ProgramSet set = make_programs(*model, shape, workspaces);
  EXPECT_LT(set.sizes.total() + 5 * kBlockInput, kept.sizes.total());
}

}  // namespace
}  // namespace convoy
