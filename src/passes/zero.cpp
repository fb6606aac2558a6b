#include "passes/zero.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "graph/ops/collective.h"
#include "graph/ops/compress.h"
#include "graph/ops/update.h"
#include "passes/segments.h"

namespace convoy {

ShardCut zero_cut(std::int64_t numel, int world) {
  return cut_evenly(numel, norm_block(numel), world);
}

std::string shard_name(const std::string& parameter) {
  return "shard." + parameter;
}

std::vector<std::size_t> cut_buckets(const std::vector<std::int64_t>& numels, std::int64_t limit) {
  std::vector<std::size_t> starts = {0};
  std::int64_t held = 0;
  for (std::size_t i = 0; i < numels.size(); ++i) {
    if (i > starts.back() && held + numels[i] > limit) {
      starts.push_back(i);
      held = 0;
    }
    held += numels[i];
  }
  if (starts.back() != numels.size() || numels.empty()) starts.push_back(numels.size());
  return starts;
}

namespace {

std::size_t at(ValueId id) {
  return static_cast<std::size_t>(id);
}

int next_channel(const Graph& graph) {
  int next = 0;
  for (const Node& node : graph.nodes()) {
    if (const auto* op = dynamic_cast<const CollectiveOp*>(node.op.get())) next = std::max(next, op->number + 1);
  }
  return next;
}

class GradientSharding {
 public:
  GradientSharding(Graph& graph, const ZeroOptions& options)
      : graph_(graph), options_(options), channel_(next_channel(graph)) {}

  void run() {
    find_gradients();
    const std::vector<Node> nodes = graph_.nodes();
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      made_.push_back(nodes[n]);
      for (ValueId id : nodes[n].outputs) {
        if (final_[at(id)]) add(id, nodes[n]);
      }
      if (n + 1 == nodes.size() || nodes[n + 1].block != nodes[n].block) flush(nodes[n]);
    }
    finish_pending();
    set_nodes(graph_, std::move(made_));
  }

 private:
  void find_gradients() {
    final_.assign(graph_.value_count(), false);
    for (ValueId id : graph_.outputs) {
      if (graph_.value(id).role == Role::kGradient) final_[at(id)] = true;
    }
    std::erase_if(graph_.outputs, [&](ValueId id) { return final_[at(id)]; });
    for (std::size_t id = 0; id < graph_.value_count(); ++id) {
      Value& value = graph_.value(static_cast<ValueId>(id));
      if (value.role != Role::kGradient) continue;
      check(value.producer >= 0, "sharded gradients do not accumulate in whole buffers");
      value.role = Role::kActivation;
    }
  }

  void add(ValueId gradient, const Node& producer) {
    const std::int64_t numel = graph_.spec(gradient).numel();
    if (!buckets_.empty() && held_ + numel > options_.reduce_bucket) flush(producer);
    const DType own = graph_.spec(gradient).dtype;
    buckets_[options_.converts(own) ? options_.wire : own].push_back(gradient);
    held_ += numel;
    if (held_ >= options_.reduce_bucket) flush(producer);
  }

  // A collective operation has one type.
  void flush(const Node& after) {
    if (buckets_.empty()) return;
    finish_pending();
    for (const auto& [type, bucket] : buckets_) send(bucket, after);
    buckets_.clear();
    held_ = 0;
    if (!options_.overlap) finish_pending();
  }

  void send(const std::vector<ValueId>& bucket, const Node& after) {
    std::vector<ShardCut> cuts;
    std::vector<ValueId> sent = bucket;
    for (ValueId& id : sent) {
      cuts.push_back(zero_cut(graph_.spec(id).numel(), options_.world));
      if (options_.converts(graph_.spec(id).dtype))
        id = emit(graph_.make(std::make_shared<const Convert>(options_.wire), {id}), after);
    }
    Node start =
        graph_.make(std::make_shared<const ReduceScatterStart>(channel_, options_.rank, std::move(cuts)), sent);
    const std::vector<ValueId> received = start.outputs;
    emit(std::move(start), after);
    std::vector<ValueId> held = sent;
    for (std::size_t i = 0; i < bucket.size(); ++i) {
      if (sent[i] != bucket[i]) held.push_back(received[i]);
    }
    pending_.push_back(placed(graph_.make(std::make_shared<const CollectiveWait>(channel_), held), after));
    for (std::size_t i = 0; i < bucket.size(); ++i) {
      ValueId shard = received[i];
      if (sent[i] != bucket[i]) {
        const DType own = graph_.spec(bucket[i]).dtype;
        pending_.push_back(placed(graph_.make(std::make_shared<const Convert>(own), {shard}), after));
        shard = pending_.back().outputs[0];
      }
      graph_.value(shard).role = Role::kGradient;
      graph_.value(shard).name = shard_name(graph_.value(bucket[i]).name);
      graph_.outputs.push_back(shard);
    }
    ++channel_;
  }

  static Node placed(Node node, const Node& after) {
    node.block = after.block;
    node.phase = after.phase;
    return node;
  }
  ValueId emit(Node node, const Node& after) {
    const ValueId first = node.outputs.empty() ? kNoValue : node.outputs[0];
    made_.push_back(placed(std::move(node), after));
    return first;
  }

  void finish_pending() {
    for (Node& node : pending_) made_.push_back(std::move(node));
    pending_.clear();
  }

  Graph& graph_;
  const ZeroOptions& options_;
  int channel_;
  std::vector<Node> made_;
  std::vector<bool> final_;                        // by value
  std::map<DType, std::vector<ValueId>> buckets_;  // complete gradients by the type that they are sent in
  std::int64_t held_ = 0;                          // their elements
  std::vector<Node> pending_;                      // what ends the buckets under way; empty: none is
};

// The use of a weight in a segment.
struct Use {
  ValueId weight;
  std::size_t segment;
  ValueId whole = kNoValue;
};

class WeightGathering {
 public:
  WeightGathering(Graph& graph, const ZeroOptions& options)
      : graph_(graph), options_(options), channel_(next_channel(graph)) {}

  void run() {
    segments_ = cut_segments(graph_);
    fetched_.assign(segments_.size(), 0);
    held_.assign(segments_.size(), 0);
    before_.resize(segments_.size());
    find_intervals();
    keep_between_uses();
    plan_gathers();
    rewrite();
  }

 private:
  bool sharded(ValueId id) const {
    const Value& value = graph_.value(id);
    return value.role == Role::kWeight && value.producer < 0 && options_.shards_weight(value.spec.numel());
  }
  std::int64_t numel(ValueId id) const { return graph_.spec(id).numel(); }

  // One per segment that uses a weight, in the order of first use.
  void find_intervals() {
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const std::size_t known = intervals_.size();
      for (std::size_t n = segments_[s].begin; n < segments_[s].end; ++n) {
        for (ValueId id : graph_.node(static_cast<NodeId>(n)).inputs) {
          if (id == kNoValue || !sharded(id)) continue;
          const bool seen = std::any_of(intervals_.begin() + static_cast<std::ptrdiff_t>(known), intervals_.end(),
                                        [&](const Use& each) { return each.weight == id; });
          if (seen) continue;
          intervals_.push_back({id, s});
          fetched_[s] += numel(id);
          held_[s] += numel(id);
        }
      }
    }
  }

  // Joins neighbouring intervals of a weight, the nearest first, as far as the limits allow.
  void keep_between_uses() {
    struct Gap {
      std::int64_t distance;
      std::size_t earlier, later;  // intervals
    };
    std::vector<Gap> gaps;
    std::map<ValueId, std::size_t> latest;
    for (std::size_t i = 0; i < intervals_.size(); ++i) {
      if (const auto known = latest.find(intervals_[i].weight); known != latest.end()) {
        std::int64_t distance = 0;
        for (std::size_t s = intervals_[known->second].segment + 1; s < intervals_[i].segment; ++s)
          distance += fetched_[s];
        if (distance <= options_.max_reuse_distance) gaps.push_back({distance, known->second, i});
      }
      latest[intervals_[i].weight] = i;
    }
    std::stable_sort(gaps.begin(), gaps.end(), [](const Gap& a, const Gap& b) { return a.distance < b.distance; });
    joined_.resize(intervals_.size());
    for (std::size_t i = 0; i < joined_.size(); ++i) joined_[i] = i;
    for (const Gap& gap : gaps) {
      const std::int64_t size = numel(intervals_[gap.earlier].weight);
      bool fits = true;
      for (std::size_t s = intervals_[gap.earlier].segment + 1; s < intervals_[gap.later].segment; ++s)
        fits = fits && held_[s] + size <= options_.max_live;
      if (!fits) continue;
      for (std::size_t s = intervals_[gap.earlier].segment + 1; s < intervals_[gap.later].segment; ++s)
        held_[s] += size;
      joined_[gap.later] = gap.earlier;
    }
    // Each interval points to the first of its chain, which gathers for all.
    for (std::size_t i = 0; i < joined_.size(); ++i) {
      while (joined_[joined_[i]] != joined_[i]) joined_[i] = joined_[joined_[i]];
    }
  }

  ValueId shard_of(ValueId weight) {
    const auto [place, fresh] = shards_.try_emplace(weight, kNoValue);
    if (fresh) {
      const TensorSpec spec = graph_.spec(weight);
      const std::string name = shard_name(graph_.value(weight).name);
      const std::int64_t length = zero_cut(spec.numel(), options_.world).length(options_.rank);
      place->second = graph_.add_source(Role::kWeight, name, {spec.dtype, {length}});
    }
    return place->second;
  }

  void plan_gathers() {
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      std::vector<std::size_t> wanted;
      std::vector<std::int64_t> numels;
      for (std::size_t i = 0; i < intervals_.size(); ++i) {
        if (intervals_[i].segment != s || joined_[i] != i) continue;
        wanted.push_back(i);
        numels.push_back(numel(intervals_[i].weight));
      }
      if (wanted.empty()) continue;
      const std::vector<std::size_t> buckets = cut_buckets(numels, options_.gather_bucket);
      for (std::size_t b = 0; b + 1 < buckets.size(); ++b)
        plan_bucket(s, {wanted.begin() + static_cast<std::ptrdiff_t>(buckets[b]),
                        wanted.begin() + static_cast<std::ptrdiff_t>(buckets[b + 1])});
    }
  }

  void plan_bucket(std::size_t segment, const std::vector<std::size_t>& bucket) {
    std::vector<ShardCut> cuts;
    std::vector<Shape> shapes;
    std::vector<ValueId> shards;
    std::vector<std::string> names;
    std::int64_t size = 0;
    for (std::size_t i : bucket) {
      const ValueId weight = intervals_[i].weight;
      cuts.push_back(zero_cut(numel(weight), options_.world));
      shapes.push_back(graph_.spec(weight).shape);
      shards.push_back(shard_of(weight));
      names.push_back(graph_.value(weight).name);
      size += numel(weight);
    }
    Node start = graph_.make(std::make_shared<const AllGatherStart>(channel_, std::move(cuts), std::move(shapes)),
                             shards, names);
    for (std::size_t i = 0; i < bucket.size(); ++i) intervals_[bucket[i]].whole = start.outputs[i];
    std::vector<ValueId> held = std::move(shards);  // where they are fetched, they are no longer theirs alone
    held.insert(held.end(), start.outputs.begin(), start.outputs.end());
    const Node wait = graph_.make(std::make_shared<const CollectiveWait>(channel_), std::move(held));
    ++channel_;
    const bool ahead = options_.overlap && segment > 0 && size <= options_.prefetch_bucket &&
                       held_[segment - 1] + size <= options_.max_live;
    if (ahead) {
      held_[segment - 1] += size;
      before_[segment - 1].starts_ahead.push_back(std::move(start));
      before_[segment].waits.push_back(wait);
    } else {
      before_[segment].waits.push_back(std::move(start));
      before_[segment].waits.push_back(wait);
    }
  }

  void rewrite() {
    // The interval that serves a weight in a segment.
    std::map<std::pair<std::size_t, ValueId>, ValueId> whole;
    for (std::size_t i = 0; i < intervals_.size(); ++i)
      whole[{intervals_[i].segment, intervals_[i].weight}] = intervals_[joined_[i]].whole;
    std::vector<Node> made;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const Node& first = graph_.node(static_cast<NodeId>(segments_[s].begin));
      for (auto* added : {&before_[s].waits, &before_[s].starts_ahead}) {
        for (Node& node : *added) {
          node.block = first.block;
          node.phase = first.phase;
          made.push_back(std::move(node));
        }
      }
      for (std::size_t n = segments_[s].begin; n < segments_[s].end; ++n) {
        Node node = graph_.node(static_cast<NodeId>(n));
        for (ValueId& id : node.inputs) {
          if (id != kNoValue && sharded(id)) id = whole.at({s, id});
        }
        made.push_back(std::move(node));
      }
    }
    set_nodes(graph_, std::move(made));
  }

  struct Added {
    std::vector<Node> waits, starts_ahead;
  };

  Graph& graph_;
  const ZeroOptions& options_;
  int channel_;
  std::vector<Segment> segments_;
  std::vector<Use> intervals_;
  std::vector<std::size_t> joined_;           // by interval: the one that gathers for it
  std::vector<std::int64_t> fetched_, held_;  // by segment: elements that it uses; elements held whole in it
  std::vector<Added> before_;                 // by segment
  std::map<ValueId, ValueId> shards_;
};

}  // namespace

void shard_gradients(Graph& graph, const ZeroOptions& options) {
  GradientSharding(graph, options).run();
}

void gather_weights(Graph& graph, const ZeroOptions& options) {
  WeightGathering(graph, options).run();
}

}  // namespace convoy
