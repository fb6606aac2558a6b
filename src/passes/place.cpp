#include "passes/place.h"

#include <algorithm>
#include <numeric>

#include "base/random.h"

namespace convoy {
namespace {

// Whether `output` of node n may take over the buffer of `input`: an activation, same size, last used here.
struct AliasChooser {
  const Graph& graph;
  const std::vector<std::int32_t>& last_use;  // by value
  const Lifetimes& made;

  bool may_take(const Node& node, std::int32_t n, ValueId output, ValueId input) const {
    const Value& from = graph.value(input);
    if (from.role != graph.value(output).role || from.producer < 0 || from.spec.bytes() != graph.spec(output).bytes())
      return false;
    if (std::count(node.inputs.begin(), node.inputs.end(), input) > 1) return false;
    const std::int32_t buffer = made.buffer_of[static_cast<std::size_t>(input)];
    for (ValueId sharer : made.buffers[static_cast<std::size_t>(buffer)].values) {
      if (last_use[static_cast<std::size_t>(sharer)] > n) return false;
    }
    return true;
  }
};

std::vector<std::int32_t> last_uses(const Graph& graph) {
  std::vector<std::int32_t> last(graph.value_count(), -1);
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    for (ValueId id : graph.nodes()[n].outputs) last[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(n);
    for (ValueId id : graph.nodes()[n].inputs) {
      if (id != kNoValue) last[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(n);
    }
  }
  for (ValueId id : graph.outputs) last[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(graph.nodes().size());
  return last;
}

}  // namespace

Lifetimes lifetimes(const Graph& graph, Role role) {
  const std::vector<std::int32_t> last = last_uses(graph);
  Lifetimes made;
  made.buffer_of.assign(graph.value_count(), -1);
  const AliasChooser chooser{graph, last, made};
  for (std::size_t index = 0; index < graph.nodes().size(); ++index) {
    const Node& node = graph.nodes()[index];
    const auto n = static_cast<std::int32_t>(index);
    const std::vector<Alias> aliases = node.op->aliases();
    std::vector<std::int32_t> taken;
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId output = node.outputs[o];
      if (graph.value(output).role != role) continue;
      std::int32_t buffer = -1;
      for (const Alias& alias : aliases) {
        if (static_cast<std::size_t>(alias.output) != o || static_cast<std::size_t>(alias.input) >= node.inputs.size())
          continue;
        const ValueId input = node.inputs[static_cast<std::size_t>(alias.input)];
        if (input == kNoValue) continue;
        if (alias.must) {
          buffer = made.buffer_of[static_cast<std::size_t>(input)];
          check(buffer >= 0, "an operation updates in place what is no buffer");
          break;
        }
        if (!chooser.may_take(node, n, output, input)) continue;
        const std::int32_t candidate = made.buffer_of[static_cast<std::size_t>(input)];
        if (std::find(taken.begin(), taken.end(), candidate) != taken.end()) continue;
        buffer = candidate;
        break;
      }
      if (buffer < 0) {
        buffer = static_cast<std::int32_t>(made.buffers.size());
        made.buffers.push_back({aligned(graph.spec(output).bytes()), n, n, {}});
      }
      taken.push_back(buffer);
      Buffer& home = made.buffers[static_cast<std::size_t>(buffer)];
      home.values.push_back(output);
      home.last = std::max(home.last, last[static_cast<std::size_t>(output)]);
      made.buffer_of[static_cast<std::size_t>(output)] = buffer;
    }
  }
  return made;
}

std::size_t largest_live_set(const Lifetimes& lifetimes, std::size_t node_count) {
  std::vector<std::ptrdiff_t> change(node_count + 2, 0);
  for (const Buffer& buffer : lifetimes.buffers) {
    change[static_cast<std::size_t>(buffer.first)] += static_cast<std::ptrdiff_t>(buffer.bytes);
    change[static_cast<std::size_t>(buffer.last) + 1] -= static_cast<std::ptrdiff_t>(buffer.bytes);
  }
  std::ptrdiff_t live = 0;
  std::ptrdiff_t most = 0;
  for (const std::ptrdiff_t step : change) {
    live += step;
    most = std::max(most, live);
  }
  return static_cast<std::size_t>(most);
}

namespace {

class Packer {
 public:
  explicit Packer(const std::vector<Buffer>& buffers) : buffers_(buffers), conflicts_(buffers.size()) {
    std::vector<std::size_t> by_start(buffers.size());
    std::iota(by_start.begin(), by_start.end(), std::size_t{0});
    std::sort(by_start.begin(), by_start.end(),
              [&](std::size_t a, std::size_t b) { return buffers[a].first < buffers[b].first; });
    std::vector<std::size_t> active;
    for (std::size_t b : by_start) {
      std::erase_if(active, [&](std::size_t a) { return buffers[a].last < buffers[b].first; });
      for (std::size_t a : active) {
        conflicts_[a].push_back(static_cast<std::uint32_t>(b));
        conflicts_[b].push_back(static_cast<std::uint32_t>(a));
      }
      pairs_ += active.size();
      active.push_back(b);
    }
  }

  std::size_t pairs() const { return pairs_; }

  // Puts each buffer, in the given order, at the lowest offset where it fits between those placed before.
  std::size_t pack(const std::vector<std::uint32_t>& order, std::vector<std::size_t>& offsets) {
    placed_.assign(buffers_.size(), false);
    std::size_t top = 0;
    for (std::uint32_t b : order) {
      busy_.clear();
      for (std::uint32_t other : conflicts_[b]) {
        if (placed_[other]) busy_.emplace_back(offsets[other], offsets[other] + buffers_[other].bytes);
      }
      std::sort(busy_.begin(), busy_.end());
      std::size_t offset = 0;
      for (const auto& [begin, end] : busy_) {
        if (begin >= offset + buffers_[b].bytes) break;
        offset = std::max(offset, end);
      }
      offsets[b] = offset;
      placed_[b] = true;
      top = std::max(top, offset + buffers_[b].bytes);
    }
    return top;
  }

 private:
  const std::vector<Buffer>& buffers_;
  std::vector<std::vector<std::uint32_t>> conflicts_;
  std::vector<bool> placed_;
  std::vector<std::pair<std::size_t, std::size_t>> busy_;
  std::size_t pairs_ = 0;
};

std::vector<std::vector<std::uint32_t>> starting_orders(const std::vector<Buffer>& buffers) {
  std::vector<std::uint32_t> by_start(buffers.size());
  std::iota(by_start.begin(), by_start.end(), std::uint32_t{0});
  const auto duration = [&](std::uint32_t b) { return static_cast<double>(buffers[b].last - buffers[b].first + 1); };
  const auto bytes = [&](std::uint32_t b) { return static_cast<double>(buffers[b].bytes); };
  const auto sorted_by = [&](const auto& key) {
    std::vector<std::uint32_t> order = by_start;
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return key(a) > key(b); });
    return order;
  };
  return {sorted_by(bytes), sorted_by(duration), sorted_by([&](std::uint32_t b) { return bytes(b) * duration(b); }),
          by_start};
}

}  // namespace

Placement place(const Lifetimes& lifetimes, std::size_t node_count) {
  const std::vector<Buffer>& buffers = lifetimes.buffers;
  Placement best;
  best.lower_bound = largest_live_set(lifetimes, node_count);
  best.offsets.assign(buffers.size(), 0);
  if (buffers.empty()) return best;
  Packer packer(buffers);
  std::vector<std::size_t> offsets(buffers.size());
  std::vector<std::uint32_t> best_order;
  best.bytes = SIZE_MAX;
  const auto attempt = [&](const std::vector<std::uint32_t>& order) {
    const std::size_t top = packer.pack(order, offsets);
    if (top < best.bytes) {
      best.bytes = top;
      best.offsets = offsets;
    }
    return top;
  };
  for (const auto& order : starting_orders(buffers)) {
    const std::size_t before = best.bytes;
    if (attempt(order) < before) best_order = order;
    if (best.bytes == best.lower_bound) return best;
  }
  // Local search: move one buffer to the front of the order; keep what does not get worse. The work is bounded, not the
  // time, so that every rank and every run finds the same placement.
  const std::size_t work = packer.pairs() + buffers.size();
  const std::size_t tries = std::clamp<std::size_t>(20'000'000 / std::max<std::size_t>(work, 1), 8, 400);
  RandomStream random(buffers.size(), 0);
  for (std::size_t i = 0; i < tries && best.bytes > best.lower_bound; ++i) {
    std::vector<std::uint32_t> order = best_order;
    const auto from = static_cast<std::ptrdiff_t>(random.below(order.size()));
    const auto to = static_cast<std::ptrdiff_t>(random.below(static_cast<std::uint64_t>(from) + 1));
    std::rotate(order.begin() + to, order.begin() + from, order.begin() + from + 1);
    const std::size_t before = best.bytes;
    if (attempt(order) <= before) best_order = std::move(order);
  }
  return best;
}

}  // namespace convoy
