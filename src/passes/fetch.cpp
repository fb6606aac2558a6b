#include "passes/fetch.h"

#include <algorithm>
#include <map>

#include "graph/ops/embedding.h"
#include "graph/ops/host_copy.h"
#include "passes/segments.h"

namespace convoy {
namespace {

int next_number(const Graph& graph) {
  int next = 0;
  for (const Node& node : graph.nodes()) {
    if (const auto* op = dynamic_cast<const HostCopyOp*>(node.op.get())) next = std::max(next, op->number + 1);
  }
  return next;
}

class WeightFetching {
 public:
  explicit WeightFetching(Graph& graph)
      : graph_(graph), segments_(cut_segments(graph)), ahead_(segments_.size()), number_(next_number(graph)) {}

  void run() {
    find_fetches();
    plan_copies();
    rewrite();
  }

 private:
  // A copy that starts in one segment is there in the next: a gap of one segment holds the buffer as long as keeping
  // it would.
  static constexpr std::size_t kKept = 2;

  bool fetched(const Node& node, ValueId id) const {
    if (id == kNoValue || graph_.value(id).role != Role::kWeight || graph_.value(id).producer >= 0) return false;
    return dynamic_cast<const Embedding*>(node.op.get()) == nullptr;
  }

  // What the node that uses them first asks for, by node.
  void find_fetches() {
    std::map<ValueId, std::size_t> last_segment;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      for (std::size_t n = segments_[s].begin; n < segments_[s].end; ++n) {
        const Node& node = graph_.nodes()[n];
        for (const ValueId id : node.inputs) {
          if (!fetched(node, id)) continue;
          const auto [known, first] = last_segment.try_emplace(id, s);
          if (first || s - known->second > kKept) wanted_[n].push_back(id);
          known->second = s;
        }
      }
    }
  }

  void plan_copies() {
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      for (std::size_t n = segments_[s].begin; n < segments_[s].end; ++n) {
        const auto wanted = wanted_.find(n);
        if (wanted == wanted_.end()) continue;
        std::vector<std::string> names;
        for (const ValueId id : wanted->second) names.push_back(graph_.value(id).name);
        Node start = graph_.make(std::make_shared<const FetchStart>(number_), wanted->second, names);
        std::vector<ValueId> held = wanted->second;
        held.insert(held.end(), start.outputs.begin(), start.outputs.end());
        Arrival& arrival = arrivals_[n];
        arrival.copies = start.outputs;
        arrival.wait = graph_.make(std::make_shared<const HostCopyWait>(number_), std::move(held));
        ahead_[s == 0 ? 0 : s - 1].push_back(std::move(start));
        ++number_;
      }
    }
  }

  void emit(Node node, const Node& beside) {
    node.block = beside.block;
    node.phase = beside.phase;
    made_.push_back(std::move(node));
  }

  void rewrite() {
    std::map<ValueId, ValueId> there;  // the copy that serves a weight at this point
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const Node first = graph_.nodes()[segments_[s].begin];
      for (Node& start : ahead_[s]) emit(std::move(start), first);
      for (std::size_t n = segments_[s].begin; n < segments_[s].end; ++n) {
        Node node = graph_.nodes()[n];
        if (const auto arrival = arrivals_.find(n); arrival != arrivals_.end()) {
          const std::vector<ValueId>& weights = wanted_.at(n);
          for (std::size_t i = 0; i < weights.size(); ++i) there[weights[i]] = arrival->second.copies[i];
          emit(std::move(arrival->second.wait), node);
        }
        for (ValueId& id : node.inputs) {
          if (fetched(node, id)) id = there.at(id);
        }
        made_.push_back(std::move(node));
      }
    }
    set_nodes(graph_, std::move(made_));
  }

  struct Arrival {
    std::vector<ValueId> copies;  // of the weights that the node wants, in their order
    Node wait;
  };

  Graph& graph_;
  const std::vector<Segment> segments_;
  std::map<std::size_t, std::vector<ValueId>> wanted_;  // by the node that uses them first: weights
  std::map<std::size_t, Arrival> arrivals_;             // likewise
  std::vector<std::vector<Node>> ahead_;                // by segment: the copies that start before it
  std::vector<Node> made_;
  int number_;
};

}  // namespace

void fetch_weights(Graph& graph) {
  WeightFetching(graph).run();
}

}  // namespace convoy
