#include "passes/fetch.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "graph/ops/collective.h"
#include "graph/ops/embedding.h"
#include "graph/ops/host_copy.h"
#include "passes/differentiate.h"
#include "passes/fuse.h"
#include "passes/lifetimes.h"
#include "passes/offload.h"
#include "passes/order.h"
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

constexpr std::int64_t kTokens = 64, kHidden = 64;

std::unique_ptr<Model> qwen2(std::int64_t layers, bool tied = true) {
  return make_model(Json{{"model_type", "qwen2"},
                         {"vocab_size", 512},
                         {"hidden_size", kHidden},
                         {"intermediate_size", 160},
                         {"num_hidden_layers", layers},
                         {"num_attention_heads", 4},
                         {"num_key_value_heads", 2},
                         {"tie_word_embeddings", tied}},
                    "test");
}

std::size_t bytes_of(const Model& model, const std::string& part) {
  std::size_t bytes = 0;
  for (const Parameter& each : model.parameters()) {
    if (each.name.find(part) != std::string::npos) bytes += static_cast<std::size_t>(each.shape.numel()) * 4;
  }
  return bytes;
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

bool is_weight(const Graph& graph, ValueId id) {
  return id != kNoValue && graph.value(id).role == Role::kWeight && graph.value(id).producer < 0;
}

// Every copy of a weight to the device: where it starts, where it is waited for, and who reads it.
struct Copy {
  ValueId weight = kNoValue;
  std::size_t start = 0, wait = 0, first_read = 0, last_read = 0;
};

std::map<ValueId, Copy> copies_of(const Graph& graph) {
  std::map<ValueId, Copy> copies;
  std::map<int, std::vector<ValueId>> by_number;
  std::set<int> numbers;
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (dynamic_cast<const HostCopyWait*>(node.op.get()) != nullptr) {
      for (const ValueId id : by_number[static_cast<const HostCopyOp&>(*node.op).number]) copies.at(id).wait = n;
      continue;
    }
    if (const auto* copy = dynamic_cast<const HostCopyOp*>(node.op.get())) {
      EXPECT_TRUE(numbers.insert(copy->number).second) << "two copies of one number";
      for (std::size_t i = 0; i < node.inputs.size() && is_weight(graph, node.inputs[i]); ++i) {
        EXPECT_NE(dynamic_cast<const FetchStart*>(node.op.get()), nullptr);
        by_number[copy->number].push_back(node.outputs[i]);
        copies[node.outputs[i]] = {node.inputs[i], n, 0, 0, 0};
      }
      continue;
    }
    for (const ValueId id : node.inputs) {
      if (const auto found = copies.find(id); found != copies.end()) {
        if (found->second.first_read == 0) found->second.first_read = n;
        found->second.last_read = n;
      }
    }
  }
  return copies;
}

void expect_sound(const Graph& graph) {
  std::vector<std::size_t> segment;
  const std::vector<Segment> segments = cut_segments(graph);
  for (std::size_t s = 0; s < segments.size(); ++s) segment.resize(segments[s].end, s);
  for (const Node& node : graph.nodes()) {
    if (dynamic_cast<const HostCopyOp*>(node.op.get()) != nullptr ||
        dynamic_cast<const Embedding*>(node.op.get()) != nullptr)
      continue;
    for (const ValueId id : node.inputs)
      EXPECT_FALSE(is_weight(graph, id)) << graph.value(id).name << " is not fetched";
  }
  const std::map<ValueId, Copy> copies = copies_of(graph);
  EXPECT_FALSE(copies.empty());
  std::map<ValueId, std::size_t> done;  // by weight: the segment after which its last copy is gone
  for (const auto& [fetched, copy] : copies) {
    const std::string& name = graph.value(copy.weight).name;
    ASSERT_GT(copy.wait, copy.start) << name;
    ASSERT_GT(copy.first_read, copy.wait) << name << " is read before it is there";
    EXPECT_EQ(segment[copy.wait], segment[copy.first_read]) << name;
    EXPECT_EQ(segment[copy.start] + (segment[copy.wait] > 0 ? 1 : 0), segment[copy.wait]) << name << ": a block ahead";
    for (std::size_t n = copy.wait; n < copy.first_read; ++n)
      EXPECT_NE(dynamic_cast<const HostCopyWait*>(graph.nodes()[n].op.get()), nullptr) << "waited for too early";
    EXPECT_EQ(graph.value(fetched).role, Role::kActivation);
    EXPECT_EQ(graph.spec(fetched), graph.spec(copy.weight));
    const auto [before, first] = done.try_emplace(copy.weight, segment[copy.last_read]);
    if (!first) {
      EXPECT_GT(segment[copy.start], before->second) << name << ": two copies at once";
      before->second = segment[copy.last_read];
    }
  }
}

// The most bytes of fetched weights that are on the device at once.
std::size_t fetched_at_once(const Graph& graph) {
  std::size_t most = 0;
  const std::map<ValueId, Copy> copies = copies_of(graph);
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    std::size_t bytes = 0;
    for (const auto& [id, copy] : copies) {
      if (copy.start <= n && n <= copy.last_read) bytes += graph.spec(id).bytes();
    }
    most = std::max(most, bytes);
  }
  return most;
}

TEST(Fetch, BringsEachBlocksWeightsOneBlockAhead) {
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
    std::size_t before = 0;
    for (const std::int64_t layers : {4, 9}) {
      const auto model = qwen2(layers);
      Graph graph = training_graph(*model, mode);
      fetch_weights(graph);
      expect_sound(graph);
      const std::size_t block = bytes_of(*model, "layers.0."), head = bytes_of(*model, "embed");
      // However many blocks: two of them and the norm that is fused to the second's end, or the last one and the head.
      const std::size_t held = fetched_at_once(graph);
      EXPECT_GE(held, block);
      EXPECT_LE(held, std::max(2 * block, block + head) + bytes_of(*model, "model.norm"));
      if (before != 0) {
        EXPECT_EQ(held, before);
      }
      before = held;
      // Forward and backward, but for the last block, which is kept over the head between them.
      std::map<std::string, int> times;
      for (const auto& [id, copy] : copies_of(graph)) ++times[graph.value(copy.weight).name];
      EXPECT_EQ(times.at("model.embed_tokens.weight"), 1) << "the head; the look-up reads its rows where they are";
      EXPECT_EQ(times.at("model.norm.weight"), 1);
      const std::string last = "model.layers." + std::to_string(layers - 1);
      EXPECT_EQ(times.at(last + ".mlp.down_proj.weight"), 1);
      EXPECT_EQ(times.at("model.layers.1.mlp.down_proj.weight"), 2);
    }
  }
}

TEST(Fetch, LeavesATablesLookUpsInHostMemory) {
  const auto model = qwen2(3, false);
  Graph graph = training_graph(*model, RecomputeMode::kNone);
  fetch_weights(graph);
  expect_sound(graph);
  for (const auto& [id, copy] : copies_of(graph)) EXPECT_NE(graph.value(copy.weight).name, "model.embed_tokens.weight");
  bool looks_up = false;
  for (const Node& node : graph.nodes()) {
    if (dynamic_cast<const Embedding*>(node.op.get()) != nullptr) looks_up |= is_weight(graph, node.inputs[1]);
  }
  EXPECT_TRUE(looks_up);
}

TEST(Fetch, GoesWithOffloadedActivations) {
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kFull}) {
    Graph graph = training_graph(*qwen2(6), mode);
    offload_activations(graph, {mode == RecomputeMode::kFull, 0});
    const std::size_t nodes = graph.nodes().size();
    fetch_weights(graph);
    EXPECT_GT(graph.nodes().size(), nodes);
    expect_sound(graph);
  }
}

// A gather reads the fetched shard until it is waited for, possibly in the next block: so long its memory is taken.
TEST(Fetch, HoldsAShardUntilItIsGathered) {
  for (const bool overlap : {true, false}) {
    Graph graph = training_graph(*qwen2(5), RecomputeMode::kFull);
    ZeroOptions zero;
    zero.stage = 3;
    zero.world = 4;
    zero.rank = 1;
    zero.overlap = overlap;
    zero.offload_param = true;
    zero.max_reuse_distance = 0;
    zero.gather_bucket = 9000;
    gather_weights(graph, zero);
    fetch_weights(graph);
    expect_sound(graph);
    shard_gradients(graph, zero);
    const std::map<ValueId, Copy> copies = copies_of(graph);
    std::map<int, std::vector<ValueId>> gathered;
    std::set<ValueId> waited;
    for (const Node& node : graph.nodes()) {
      if (const auto* start = dynamic_cast<const AllGatherStart*>(node.op.get())) {
        for (const ValueId id : node.inputs) EXPECT_EQ(copies.count(id), 1u) << "a gather of what is in host memory";
        gathered[start->number] = node.inputs;
      } else if (const auto* wait = dynamic_cast<const CollectiveWait*>(node.op.get())) {
        for (const ValueId id : gathered[wait->number]) {
          EXPECT_EQ(std::count(node.inputs.begin(), node.inputs.end(), id), 1);
          waited.insert(id);
        }
      }
    }
    EXPECT_EQ(waited.size(), copies.size());
  }
}

TEST(Fetch, IsALineOfTheReportAndAnAlternative) {
  const NoWorkspace workspaces;
  const auto model = qwen2(8);
  TrainShape shape;
  shape.seq = kTokens;
  shape.dtype = DType::kBF16;
  shape.narrow_gradients = true;  // else that is what saves the most
  shape.eval_rows = 1;
  shape.has_own_memory = true;
  shape.offload_optimizer = true;
  const auto report_of = [&](const TrainShape& of) {
    const ProgramSet set = make_programs(*model, of, workspaces);
    return memory_report(set.sizes, set.activation_lower_bound);
  };
  const MemoryReport before = report_of(shape);
  shape.zero.offload_param = true;
  const MemoryReport after = report_of(shape);
  const std::size_t weights = before.lines[0].bytes;
  EXPECT_EQ(after.lines[0].kind, "weights");
  EXPECT_TRUE(after.lines[0].host);
  EXPECT_EQ(after.host_total, before.host_total + weights);
  EXPECT_LT(after.total + weights / 2, before.total) << "of eight blocks, two and the head are on the device at most";

  const auto refusal = [&](const TrainShape& of, const MemoryLimit& limit) -> std::string {
    try {
      require_fit(*model, of, workspaces, report_of(of), limit);
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::kDoesNotFit);
      return error.remedy();
    }
    return "fits";
  };
  EXPECT_EQ(refusal(shape, {after.total, after.host_total}), "fits");
  EXPECT_NE(refusal(shape, {after.total, after.host_total - 1}).find("--offload_param none"), std::string::npos);
  shape.zero.offload_param = false;
  EXPECT_NE(refusal(shape, {after.total, after.host_total}).find("  --offload_param cpu\n"), std::string::npos);
  EXPECT_EQ(refusal(shape, {after.total, after.host_total - 1}).find("  --offload_param cpu\n"), std::string::npos)
      << "the host has no room for it";
  shape.has_own_memory = false;
  EXPECT_EQ(refusal(shape, {after.total}).find("--offload_param"), std::string::npos);
}

TEST(Fetch, OfSeveralRanksNeedsShards) {
  const NoWorkspace workspaces;
  const auto model = qwen2(2);
  TrainShape shape;
  shape.seq = kTokens;
  shape.has_own_memory = true;
  shape.zero.offload_param = true;
  shape.zero.world = 2;
  for (int stage = 0; stage < 3; ++stage) {
    shape.zero.stage = stage;
    EXPECT_THROW(make_programs(*model, shape, workspaces), Error) << stage;
  }
  shape.zero.stage = 3;
  const ProgramSet set = make_programs(*model, shape, workspaces);
  for (const Parameter& each : model->parameters())
    EXPECT_FALSE(set.layout.contains(Role::kWeight, each.name)) << each.name << " is whole, small as it is";
}

}  // namespace
}  // namespace convoy
