#include "train/beam_search.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace convoy {
namespace {

struct Candidate {
  double score;
  std::size_t parent;
  std::int32_t token;
};

bool better(const Candidate& a, const Candidate& b) {
  if (a.score != b.score) return a.score > b.score;
  return a.parent != b.parent ? a.parent < b.parent : a.token < b.token;
}

// The `count` most likely continuations of one beam.
void add_candidates(std::span<const float> logits, double score, std::size_t parent, std::size_t count,
                    std::vector<Candidate>& all) {
  const float most = *std::max_element(logits.begin(), logits.end());
  if (!std::isfinite(most)) throw numerics_error("the model's logits are not finite").mend("check the weights");
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  const double shift = score - most - std::log(sum);
  std::vector<Candidate> own;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) own.push_back({shift + logits[i], parent, static_cast<std::int32_t>(i)});
  }
  const auto kept = own.begin() + static_cast<std::ptrdiff_t>(std::min(count, own.size()));
  std::partial_sort(own.begin(), kept, own.end(), better);
  all.insert(all.end(), own.begin(), kept);
}

}  // namespace

BeamSearch::BeamSearch(BeamOptions options) : options_(std::move(options)), live_(1) {
  check(options_.beams > 0, "a search without beams");
}

double BeamSearch::penalized(double score, std::size_t length) const {
  const std::int64_t counted = std::max<std::int64_t>(static_cast<std::int64_t>(length) - options_.uncounted, 1);
  return score / std::pow(static_cast<double>(counted), options_.length_penalty);
}

void BeamSearch::end(Tokens made, double score) {
  const double penalty = penalized(score, made.size());
  const auto place = std::find_if(ended_.begin(), ended_.end(), [&](const Ended& e) { return e.score < penalty; });
  ended_.insert(place, {std::move(made), penalty, score});
  if (static_cast<std::int64_t>(ended_.size()) > options_.beams) ended_.pop_back();
}

std::vector<BeamSearch::Next> BeamSearch::advance(std::span<const std::vector<float>> logits) {
  check(logits.size() == live_.size(), "logits of another number of beams");
  const auto beams = static_cast<std::size_t>(options_.beams);
  // Twice as many as live on: were all of one half to end, the other half would still fill the beams.
  std::vector<Candidate> candidates;
  for (std::size_t b = 0; b < live_.size(); ++b) add_candidates(logits[b], live_[b].score, b, 2 * beams, candidates);
  std::sort(candidates.begin(), candidates.end(), better);
  if (candidates.size() > 2 * beams) candidates.resize(2 * beams);

  std::vector<Next> chosen;
  std::vector<Beam> next;
  for (std::size_t rank = 0; rank < candidates.size() && next.size() < beams; ++rank) {
    const Candidate& candidate = candidates[rank];
    Tokens made = live_[candidate.parent].made;
    made.push_back(candidate.token);
    const bool stops = std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), candidate.token) !=
                       options_.stop_tokens.end();
    if (stops || static_cast<std::int64_t>(made.size()) >= options_.max_tokens) {
      if (rank < beams) end(std::move(made), candidate.score);
      continue;
    }
    next.push_back({std::move(made), candidate.score});
    chosen.push_back({candidate.parent, candidate.token});
  }
  const bool full = ended_.size() == beams;
  if (full && (next.empty() || penalized(next.front().score, next.front().made.size()) <= ended_.back().score))
    chosen.clear();
  live_ = std::move(next);
  return chosen;
}

const BeamSearch::Tokens& BeamSearch::best() const {
  check(!ended_.empty() || !live_.empty(), "a search without a text");
  return ended_.empty() ? live_.front().made : ended_.front().made;
}

double BeamSearch::best_log_probability() const {
  check(!ended_.empty() || !live_.empty(), "a search without a text");
  return ended_.empty() ? live_.front().score : ended_.front().log_probability;
}

}  // namespace convoy
