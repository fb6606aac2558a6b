// One recording, or a part of one, with what was said in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "audio/decode.h"
#include "base/files.h"

namespace convoy {

struct Utterance {
  std::string audio;     // the file: a recording, or a tar shard that holds it
  std::string text;      // transcript
  std::string language;  // "en"; "" where the manifest does not say
  std::string where;     // "file:line", or "shard: member"
  std::string id;        // the manifest's own name of it; may be empty

  std::uint64_t offset = 0, size = 0;  // the recording's bytes within the file; size 0: to the end of the file
  double start = 0, seconds = 0;       // the part of the recording; seconds 0: to its end
  double duration = -1;                // seconds; -1 where nobody has said or measured it
};

// Reads recordings of utterances; shards stay mapped. May be used by many threads at once.
class UtteranceReader {
 public:
  // Samples of the utterance's part. `options` apply but for start and seconds. Errors name the utterance.
  Audio decode(const Utterance& utterance, DecodeOptions options = {}) const;
  // Seconds of the utterance's part by the recording's header; -1 where that does not say.
  double measure(const Utterance& utterance) const;

 private:
  struct Bytes {
    std::shared_ptr<const MappedFile> file;
    std::span<const std::byte> span;
  };
  Bytes open(const Utterance& utterance) const;
  mutable std::mutex lock_;
  mutable std::map<std::string, std::shared_ptr<const MappedFile>> shards_;
};

}  // namespace convoy
