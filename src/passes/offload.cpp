#include "passes/offload.h"

#include <algorithm>

#include "graph/ops/host_copy.h"
#include "passes/segments.h"

namespace convoy {
namespace {

std::size_t at(ValueId id) {
  return static_cast<std::size_t>(id);
}

class ActivationOffload {
 public:
  ActivationOffload(Graph& graph, const OffloadOptions& options)
      : graph_(graph), options_(options), segments_(cut_segments(graph)), before_(segments_.size()) {}

  void run() {
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      for (std::size_t n = segments_[s].begin; n < segments_[s].end; ++n) segment_of_.push_back(s);
    }
    find_uses();
    choose();
    rewrite();
  }

 private:
  struct Uses {
    std::size_t last_forward = 0;  // node; the producer where there is none
    std::size_t first_later = 0;   // node
    bool crosses_block = false;    // the forward pass reads it in another block, or it is of none
    bool read_later = false;       // by another phase
    bool fixed = false;            // an output, or something writes into its buffer
    ValueId fetched = kNoValue;    // the copy that later nodes read
  };

  bool is_forward_activation(ValueId id) const {
    const Value& value = graph_.value(id);
    return value.role == Role::kActivation && value.producer >= 0 &&
           graph_.node(value.producer).phase == Phase::kForward;
  }

  void find_uses() {
    uses_.resize(graph_.value_count());
    for (std::size_t n = 0; n < graph_.nodes().size(); ++n) {
      const Node& node = graph_.nodes()[n];
      for (const ValueId id : node.outputs) {
        uses_[at(id)].last_forward = n;
        uses_[at(id)].crosses_block = node.block < 0;
      }
      for (const ValueId id : node.inputs) {
        if (id == kNoValue || !is_forward_activation(id)) continue;
        Uses& uses = uses_[at(id)];
        if (node.phase == Phase::kForward) {
          uses.last_forward = n;
          uses.crosses_block |= graph_.node(graph_.value(id).producer).block != node.block;
        } else if (!uses.read_later) {
          uses.read_later = true;
          uses.first_later = n;
        }
      }
      for (const Alias& alias : node.op->aliases()) {
        const auto input = static_cast<std::size_t>(alias.input);
        if (alias.must && input < node.inputs.size() && node.inputs[input] != kNoValue)
          uses_[at(node.inputs[input])].fixed = true;
      }
    }
    for (const ValueId id : graph_.outputs) uses_[at(id)].fixed = true;
  }

  void choose() {
    std::vector<ValueId> chosen;
    for (std::size_t v = 0; v < uses_.size(); ++v) {
      const auto id = static_cast<ValueId>(v);
      const Uses& uses = uses_[v];
      if (!uses.read_later || uses.fixed || graph_.spec(id).bytes() < options_.least_bytes) continue;
      if (options_.borders_only && !uses.crosses_block) continue;
      if (gone_from(id) < back_from(id)) chosen.push_back(id);
    }
    // What is needed first comes back first.
    std::stable_sort(chosen.begin(), chosen.end(),
                     [&](ValueId a, ValueId b) { return uses_[at(a)].first_later < uses_[at(b)].first_later; });
    for (const ValueId id : chosen) add_copies(id);
  }

  // The segment before which its memory on the device is given up.
  std::size_t gone_from(ValueId id) const {
    const auto made = static_cast<std::size_t>(graph_.value(id).producer);
    return std::max(segment_of_[uses_[at(id)].last_forward] + 1, segment_of_[made] + 2);
  }
  // The segment before which it starts to come back; 0 where there is no time for that.
  std::size_t back_from(ValueId id) const {
    const std::size_t use = segment_of_[uses_[at(id)].first_later];
    return use == 0 ? 0 : use - 1;
  }

  void add_copies(ValueId id) {
    Uses& uses = uses_[at(id)];
    const std::string name = graph_.value(id).name;
    Node offload = graph_.make(std::make_shared<const OffloadStart>(number_), {id}, {name});
    const ValueId host = offload.outputs[0];
    graph_.value(host).role = Role::kHostActivation;
    Node gone = graph_.make(std::make_shared<const HostCopyWait>(number_), {id, host});
    ++number_;
    Node fetch = graph_.make(std::make_shared<const FetchStart>(number_), {host}, {name});
    uses.fetched = fetch.outputs[0];
    Node there = graph_.make(std::make_shared<const HostCopyWait>(number_), {host, uses.fetched});
    ++number_;
    before_[gone_from(id)].waits.push_back(std::move(gone));
    before_[back_from(id)].fetches.push_back(std::move(fetch));
    offloads_.emplace_back(graph_.value(id).producer, std::move(offload));
    arrivals_.emplace_back(uses.first_later, std::move(there));
  }

  void emit(Node node, const Node& beside) {
    node.block = beside.block;
    node.phase = beside.phase;
    made_.push_back(std::move(node));
  }

  void rewrite() {
    const auto by_place = [](const auto& a, const auto& b) { return a.first < b.first; };
    std::stable_sort(offloads_.begin(), offloads_.end(), by_place);
    std::stable_sort(arrivals_.begin(), arrivals_.end(), by_place);
    auto offload = offloads_.begin();
    auto arrival = arrivals_.begin();
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const Node first = graph_.nodes()[segments_[s].begin];
      for (auto* added : {&before_[s].waits, &before_[s].fetches}) {
        for (Node& node : *added) emit(std::move(node), first);
      }
      for (std::size_t n = segments_[s].begin; n < segments_[s].end; ++n) {
        Node node = graph_.nodes()[n];
        for (; arrival != arrivals_.end() && arrival->first == n; ++arrival) emit(std::move(arrival->second), node);
        if (node.phase != Phase::kForward) {
          for (ValueId& id : node.inputs) {
            if (id != kNoValue && uses_[at(id)].fetched != kNoValue) id = uses_[at(id)].fetched;
          }
        }
        made_.push_back(node);
        for (; offload != offloads_.end() && offload->first == n; ++offload) emit(std::move(offload->second), node);
      }
    }
    set_nodes(graph_, std::move(made_));
  }

  struct Added {
    std::vector<Node> waits, fetches;
  };

  Graph& graph_;
  const OffloadOptions& options_;
  const std::vector<Segment> segments_;
  std::vector<std::size_t> segment_of_;                            // by node
  std::vector<Uses> uses_;                                         // by value
  std::vector<Added> before_;                                      // by segment
  std::vector<std::pair<std::size_t, Node>> offloads_, arrivals_;  // by the node after and before which they stand
  std::vector<Node> made_;
  int number_ = 0;
};

}  // namespace

void offload_activations(Graph& graph, const OffloadOptions& options) {
  ActivationOffload(graph, options).run();
}

}  // namespace convoy
