#include "train/rank_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"

namespace convoy {
namespace {

constexpr std::size_t kSamples = 16;      // of a stored tensor
constexpr std::size_t kSampleBytes = 64;  // reading 18 GB on every rank would cost more than it finds

std::string to_text(const Facts& facts) {
  return Json(facts).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The first rank's text on every rank.
std::string first_text(const std::string& mine, Communicator& communicator) {
  std::uint64_t length = mine.size();
  communicator.broadcast(std::as_writable_bytes(std::span(&length, 1)), 0);
  std::string text = communicator.rank() == 0 ? mine : std::string(length, '\0');
  communicator.broadcast(std::as_writable_bytes(std::span(text.data(), text.size())), 0);
  return text;
}

std::string value_in(const Facts& facts, const std::string& name) {
  const auto found = std::find_if(facts.begin(), facts.end(), [&](const auto& fact) { return fact.first == name; });
  return found == facts.end() ? "nothing" : found->second.empty() ? "no value" : found->second;
}

std::string weights_digest(const ModelFolder& folder) {
  Hasher hasher;
  std::vector<std::string> names = folder.names();
  std::sort(names.begin(), names.end());  // the cut into files may differ
  for (const std::string& name : names) {
    const ModelFolder::Tensor tensor = folder.tensor(name);
    hasher.add(name);
    hasher.add(tensor.info->spec.str());
    const std::size_t length = std::min(kSampleBytes, tensor.bytes.size());
    const std::size_t last = tensor.bytes.size() - length;
    for (std::size_t i = 0; i < kSamples; ++i) hasher.add(tensor.bytes.subspan(last / (kSamples - 1) * i, length));
  }
  return hex64(hasher.value());
}

}  // namespace

void require_agreement(const Facts& facts, const std::string& remedy, Communicator& communicator) {
  if (communicator.size() == 1) return;
  const std::string mine = to_text(facts);
  const std::string theirs = first_text(mine, communicator);
  if (mine != theirs) {
    const auto first = Json::parse(theirs).get<Facts>();
    std::string differences;
    const auto compare = [&](const std::string& name) {
      const std::string here = value_in(facts, name);
      const std::string there = value_in(first, name);
      if (here != there)
        differences += fmt::format("{}{}: {} (rank 0: {})", differences.empty() ? "" : "; ", name, here, there);
    };
    for (const auto& fact : facts) compare(fact.first);
    for (const auto& fact : first) {
      if (value_in(facts, fact.first) == "nothing") compare(fact.first);
    }
    throw usage_error(fmt::format("rank {} differs from rank 0 in {}", communicator.rank(), differences)).mend(remedy);
  }
  communicator.barrier();  // nobody goes on beside a rank that differs
}

Facts shared_inputs(const ModelSource& source, const Tokenizer& tokenizer, const RunData& data) {
  Facts facts;
  facts.emplace_back("the model's config.json", hex64(hash64(source.config->dump())));
  if (source.folder) facts.emplace_back("the model's weights", weights_digest(*source.folder));
  facts.emplace_back("the tokenizer", hex64(tokenizer.fingerprint()));
  facts.emplace_back("the training data", data.fingerprint());
  return facts;
}

}  // namespace convoy
