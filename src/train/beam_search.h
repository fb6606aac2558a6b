// The bookkeeping of beam search for one text: which of the most likely continuations live on, and which have ended.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace convoy {

struct BeamOptions {
  std::int64_t beams = 1;
  double length_penalty = 1.0;  // an ended text counts its log-probability / length^this; larger favours longer ones
  std::vector<std::int32_t> stop_tokens;  // end a text and are part of it
  std::int64_t max_tokens = 0;            // no text gets longer
  std::int64_t uncounted = 0;             // tokens at the beginning that do not count for the length penalty
};

class BeamSearch {
 public:
  using Tokens = std::vector<std::int32_t>;
  struct Next {
    std::size_t parent = 0;  // which of the beams so far
    std::int32_t token = 0;  // what was added to it
  };

  explicit BeamSearch(BeamOptions options);

  // The tokens of each living beam; at first one that is empty.
  std::size_t size() const { return live_.size(); }
  const Tokens& made(std::size_t beam) const { return live_[beam].made; }
  // Takes the logits after each living beam (-infinity: not that token). Returns the beams that live on, the best
  // first; none when the search is over: when as many texts as there are beams have ended and no living one is better
  // than the worst of them. Ties go to the earlier beam and the smaller token. Throws an error of numerics where no
  // logit is finite.
  std::vector<Next> advance(std::span<const std::vector<float>> logits);
  // The best text that has ended; of those that live where none has.
  const Tokens& best() const;
  double best_log_probability() const;

 private:
  struct Beam {
    Tokens made;
    double score = 0;  // log-probability
  };
  struct Ended {
    Tokens made;
    double score = 0;            // with the length penalty
    double log_probability = 0;  // without
  };
  double penalized(double score, std::size_t length) const;
  void end(Tokens made, double score);

  BeamOptions options_;
  std::vector<Beam> live_;
  std::vector<Ended> ended_;  // the best first, at most as many as there are beams
};

}  // namespace convoy
