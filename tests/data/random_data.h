// Token data for tests: documents of random lengths with random targets. Ids never repeat the document's number.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "data/encode.h"
#include "data/token_data.h"

namespace convoy {

inline std::shared_ptr<const TokenData> data_of(const std::vector<EncodedSample>& samples) {
  std::string bytes;
  TokenWriter writer(
      [&](std::span<const std::byte> more) { bytes.append(reinterpret_cast<const char*>(more.data()), more.size()); },
      1 << 20, 1);
  DataReport report;
  for (const EncodedSample& sample : samples) {
    writer.add(sample);
    ++report.documents;
    ++report.samples;
    report.tokens += static_cast<std::int64_t>(sample.ids.size());
    report.targets += count_targets(sample);
  }
  writer.finish(report);
  return TokenData::from_memory(std::move(bytes), "test data");
}

// Id of token i of document d: d · 1000 + i, so a test sees where a token comes from. Lengths in [2, most].
inline std::vector<EncodedSample> random_samples(std::uint64_t seed, int count, std::uint64_t most) {
  RandomStream random(seed, 1);
  std::vector<EncodedSample> samples;
  for (int d = 0; d < count; ++d) {
    EncodedSample sample;
    const auto length = static_cast<int>(2 + random.below(most - 1));
    bool train = random.below(2) == 0;
    for (int i = 0; i < length; ++i) {
      if (random.below(4) == 0) train = !train;
      sample.append(d * 1000 + i, train);
    }
    sample.trained.back() = 1;
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace convoy
