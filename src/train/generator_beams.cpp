// Beam search with a generator: the beams of a text share what was heard, and each has keys and values of its own.
#include <algorithm>

#include "base/error.h"
#include "train/beam_search.h"
#include "train/generator.h"

namespace convoy {

struct Generator::BeamGroup {
  BeamSearch search;
  std::vector<Text> beams;
  std::vector<std::int64_t> free;  // slots of the cache that no beam has
  bool over = false;
};

// The first `rows` kept keys and values of one slot into another.
void Generator::copy_cache(std::int64_t from, std::int64_t to, std::int64_t rows) {
  for (const Slot& slot : programs_->layout().slots(Role::kCache)) {
    if (slot.name.starts_with("heard_")) continue;
    const std::size_t row = slot.spec.bytes() / static_cast<std::size_t>(slot.spec.shape[0]);
    std::byte* base = arenas_->base(Role::kCache) + slot.offset;
    const auto at = [&](std::int64_t text) { return base + static_cast<std::size_t>(text * max_length_) * row; };
    device_.start_copy(at(to), at(from), static_cast<std::size_t>(rows) * row);
  }
}

void Generator::advance(BeamGroup& group, std::span<std::vector<float>> logits) {
  const std::vector<BeamSearch::Next> next = group.search.advance(logits);
  group.over = next.empty();
  if (group.over) return;
  std::vector<Text> beams;
  std::vector<bool> slot_taken(group.beams.size(), false);
  std::vector<std::size_t> copies;  // beams whose slot is to be found
  for (const BeamSearch::Next& each : next) {
    Text beam = group.beams[each.parent];
    beam.ids.push_back(each.token);
    if (slot_taken[each.parent]) copies.push_back(beams.size());
    slot_taken[each.parent] = true;
    beams.push_back(std::move(beam));
  }
  for (std::size_t b = 0; b < group.beams.size(); ++b) {
    if (!slot_taken[b]) group.free.push_back(group.beams[b].slot);
  }
  for (std::size_t b : copies) {
    const std::int64_t to = group.free.back();
    group.free.pop_back();
    if (has_cache()) copy_cache(beams[b].slot, to, static_cast<std::int64_t>(beams[b].ids.size()) - 1);
    beams[b].slot = to;
  }
  group.beams = std::move(beams);
}

std::vector<GeneratedText> Generator::beam_search(std::span<const GenerationPrompt> prompts,
                                                  const GenerationOptions& options) {
  std::vector<GeneratedText> made(prompts.size());
  std::vector<BeamGroup> active;
  std::vector<std::int64_t> free;
  for (std::int64_t clip = batch_; clip-- > 0;) free.push_back(clip);
  std::size_t next = 0;
  while (next < prompts.size() || !active.empty()) {
    while (next < prompts.size() && !free.empty()) {
      const std::int64_t clip = free.back();
      free.pop_back();
      const std::int64_t forced = prompts[next].forced;
      BeamOptions search{beams_, options.length_penalty, options.stop_tokens, 0, forced};
      search.max_tokens =
          std::min(options.max_new_tokens + forced, max_length_ - static_cast<std::int64_t>(prompts[next].ids.size()));
      BeamGroup group{BeamSearch(std::move(search)), {}, {}, false};
      for (std::int64_t b = beams_; b-- > 1;) group.free.push_back(clip * beams_ + b);
      group.beams.push_back({next, clip * beams_, prompts[next].ids, prompts[next].ids.size(), RandomStream(0, 0),
                             false, clip, prompts[next].features, prompts[next].sound});
      active.push_back(std::move(group));
      ++next;
    }
    std::vector<Text*> texts;
    for (BeamGroup& group : active) {
      for (Text& beam : group.beams) texts.push_back(&beam);
    }
    Logits logits = next_logits(texts);
    for (std::size_t i = 0; i < texts.size(); ++i) apply_rule(*texts[i], logits[i], options);
    std::size_t first = 0;
    for (BeamGroup& group : active) {
      const std::size_t count = group.beams.size();
      advance(group, std::span(logits).subspan(first, count));
      first += count;
    }
    std::erase_if(active, [&](BeamGroup& group) {
      if (!group.over) return false;
      made[group.beams.front().index] = {group.search.best(), group.search.best_log_probability()};
      free.push_back(group.beams.front().clip);
      return true;
    });
  }
  return made;
}

}  // namespace convoy
