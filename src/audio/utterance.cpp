#include "audio/utterance.h"

#include <fmt/format.h>

#include "base/error.h"

namespace convoy {
namespace {

// Adds the utterance to errors of `body`.
template <typename Body>
auto located(const Utterance& utterance, Body body) {
  try {
    return body();
  } catch (Error& failure) {
    throw utterance.where.empty() ? failure : failure.at(utterance.where);
  }
}

std::string name_of_recording(const Utterance& utterance) {
  return utterance.offset == 0 && utterance.size == 0
             ? utterance.audio
             : fmt::format("{} from byte {}", utterance.audio, utterance.offset);
}

}  // namespace

UtteranceReader::Bytes UtteranceReader::open(const Utterance& utterance) const {
  if (utterance.offset == 0 && utterance.size == 0) {
    auto file = std::make_shared<const MappedFile>(utterance.audio);
    const std::span<const std::byte> span = file->bytes();
    return {std::move(file), span};
  }
  std::shared_ptr<const MappedFile> shard;
  {
    const std::lock_guard guard(lock_);
    std::shared_ptr<const MappedFile>& known = shards_[utterance.audio];
    if (known == nullptr) known = std::make_shared<const MappedFile>(utterance.audio);
    shard = known;
  }
  const std::span<const std::byte> all = shard->bytes();
  if (utterance.offset > all.size() || utterance.size > all.size() - utterance.offset) {
    throw data_error(fmt::format("the recording lies at bytes {} to {} of a file of {}", utterance.offset,
                                 utterance.offset + utterance.size, all.size()))
        .at(utterance.audio)
        .mend("the file has changed since the manifest was read; read it again");
  }
  const std::span<const std::byte> rest = all.subspan(utterance.offset);
  return {std::move(shard), utterance.size == 0 ? rest : rest.first(utterance.size)};
}

Audio UtteranceReader::decode(const Utterance& utterance, DecodeOptions options) const {
  return located(utterance, [&] {
    const Bytes bytes = open(utterance);
    options.start = utterance.start;
    options.seconds = utterance.seconds;
    return decode_audio(bytes.span, name_of_recording(utterance), options);
  });
}

double UtteranceReader::measure(const Utterance& utterance) const {
  return located(utterance, [&] {
    if (utterance.seconds > 0) return utterance.seconds;
    const Bytes bytes = open(utterance);
    const double whole = probe_audio(bytes.span, name_of_recording(utterance)).seconds();
    return whole < 0 ? -1.0 : std::max(whole - utterance.start, 0.0);
  });
}

}  // namespace convoy
