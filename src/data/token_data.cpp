#include "data/token_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/json.h"

namespace convoy {
namespace {

// The 64-bit word also shows a file of another byte order for what it is.
constexpr std::uint64_t kMagic = 0x31304e454b4f5443ull;  // "CTOKEN01"
constexpr std::uint32_t kVersion = 2;

struct Header {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t id_bytes = 0;
  std::uint64_t key = 0;
  std::uint64_t reserved[5] = {};
};
static_assert(sizeof(Header) == 64);

// At the end of the file, so that the ids can be written before their number is known.
struct Footer {
  std::uint64_t documents = 0, tokens = 0, spans = 0;
  std::uint64_t offsets_at = 0, span_index_at = 0, spans_at = 0, report_at = 0, report_bytes = 0;
  std::uint64_t labels = 0, parts = 0;  // labels: as many as documents, or none; with them their parts
  std::uint64_t labels_at = 0, part_index_at = 0, parts_at = 0;
  std::uint64_t checksum = 0;      // of every byte before the footer
  std::uint64_t own_checksum = 0;  // of the fields above
};
static_assert(sizeof(Footer) == 120 && std::is_trivially_copyable_v<Footer>);

std::uint64_t checksum_of(const Footer& footer) {
  return hash64(std::as_bytes(std::span(&footer, 1)).first(offsetof(Footer, own_checksum)));
}

// A table of `count` values at `at`.
template <typename T>
std::span<const T> view(std::span<const std::byte> bytes, std::uint64_t at, std::uint64_t count) {
  if (at > bytes.size() || at % alignof(T) != 0 || count > (bytes.size() - at) / sizeof(T))
    throw data_error("a table lies outside the file");
  return {reinterpret_cast<const T*>(bytes.data() + at), count};
}

bool rises(std::span<const std::uint64_t> values, std::uint64_t last) {
  return values.front() == 0 && values.back() == last && std::is_sorted(values.begin(), values.end());
}

}  // namespace

std::shared_ptr<const TokenData> TokenData::open(const std::filesystem::path& path) {
  std::shared_ptr<TokenData> data(new TokenData);
  data->file_ = MappedFile(path);
  data->parse(data->file_.bytes(), path.string());
  return data;
}

std::shared_ptr<const TokenData> TokenData::from_memory(std::string bytes, const std::string& name) {
  std::shared_ptr<TokenData> data(new TokenData);
  data->memory_ = std::move(bytes);
  data->parse(std::as_bytes(std::span(data->memory_.data(), data->memory_.size())), name);
  return data;
}

void TokenData::parse(std::span<const std::byte> bytes, const std::string& name) {
  const auto need = [&](bool condition, const char* what) {
    if (!condition) throw data_error(what);
  };
  try {
    Header header;
    Footer footer;
    need(bytes.size() >= sizeof(Header) + sizeof(Footer), "it is too short to be a token file");
    std::memcpy(&header, bytes.data(), sizeof(header));
    need(header.magic == kMagic, "it is not a token file");
    need(header.version == kVersion, "it was written by another version");
    need(header.id_bytes == 2 || header.id_bytes == 4, "its ids have an unknown width");
    const std::span<const std::byte> body = bytes.first(bytes.size() - sizeof(Footer));
    std::memcpy(&footer, bytes.data() + body.size(), sizeof(footer));
    need(footer.own_checksum == checksum_of(footer), "its end is damaged or missing");
    need(footer.checksum == hash64(body), "its checksum is wrong");
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
    need(footer.documents < kMost, "it counts too many documents");
    if (header.id_bytes == 2) {
      ids16_ = view<std::uint16_t>(body, sizeof(Header), footer.tokens);
    } else {
      ids32_ = view<TokenId>(body, sizeof(Header), footer.tokens);
    }
    offsets_ = view<std::uint64_t>(body, footer.offsets_at, footer.documents + 1);
    span_index_ = view<std::uint64_t>(body, footer.span_index_at, footer.documents + 1);
    spans_ = view<TokenSpan>(body, footer.spans_at, footer.spans);
    need(footer.labels == 0 || footer.labels == footer.documents, "its labels do not fit its documents");
    labels_ = view<std::int32_t>(body, footer.labels_at, footer.labels);
    if (footer.labels > 0) {
      part_index_ = view<std::uint64_t>(body, footer.part_index_at, footer.documents + 1);
      parts_ = view<std::uint32_t>(body, footer.parts_at, footer.parts);
      need(rises(part_index_, footer.parts) && parts_fit(), "its alternatives are out of order");
    }
    const std::span<const char> report = view<char>(body, footer.report_at, footer.report_bytes);
    need(rises(offsets_, footer.tokens) && rises(span_index_, footer.spans), "its offsets are out of order");
    key_ = header.key;
    report_ = DataReport::from_json(parse_json({report.data(), report.size()}, name));
  } catch (const Error& failure) {
    throw data_error(fmt::format("cannot use {}: {}", name, failure.message()));
  }
}

// Each alternative begins behind the one before and has a token.
bool TokenData::parts_fit() const {
  for (std::int64_t d = 0; d < documents(); ++d) {
    std::uint32_t before = 0;
    for (const std::uint32_t begin : parts(d)) {
      if (begin <= before || begin >= length(d)) return false;
      before = begin;
    }
  }
  return true;
}

void TokenData::copy(std::int64_t document, std::int64_t begin, std::int64_t count, TokenId* to) const {
  const auto first = static_cast<std::size_t>(begin);
  const auto n = static_cast<std::size_t>(count);
  if (ids16_.empty()) {
    std::ranges::copy(ids32(document).subspan(first, n), to);
  } else {
    std::ranges::copy(ids16(document).subspan(first, n), to);
  }
}

std::int64_t TokenData::targets(std::int64_t document, std::int64_t begin, std::int64_t end) const {
  std::int64_t count = 0;
  for (const TokenSpan& span : trained(document)) {
    const std::int64_t from = std::max<std::int64_t>(span.begin, begin);
    const std::int64_t to = std::min<std::int64_t>(span.end, end);
    count += std::max<std::int64_t>(0, to - from);
  }
  return count;
}

TokenWriter::TokenWriter(Sink sink, std::int64_t vocab_size, std::uint64_t key)
    : sink_(std::move(sink)), key_(key), id_bytes_(vocab_size <= 65536 ? 2 : 4) {
  Header header;
  header.id_bytes = id_bytes_;
  header.key = key_;
  write(std::as_bytes(std::span(&header, 1)));
}

void TokenWriter::write(std::span<const std::byte> bytes) {
  hasher_.add(bytes);
  sink_(bytes);
  written_ += bytes.size();
}

void TokenWriter::add(const EncodedSample& sample) {
  check(sample.ids.size() == sample.trained.size(), "a sample whose marks do not fit its ids");
  if (sample.ids.size() > std::numeric_limits<std::uint32_t>::max())
    throw data_error("a document of more than 2^32 tokens").mend("cut it into parts");
  if (id_bytes_ == 2) {
    narrow_.resize(sample.ids.size());
    for (std::size_t i = 0; i < narrow_.size(); ++i) {
      check(sample.ids[i] >= 0 && sample.ids[i] < 65536, "the tokenizer made an id outside its vocabulary");
      narrow_[i] = static_cast<std::uint16_t>(sample.ids[i]);
    }
    write(std::as_bytes(std::span(narrow_)));
  } else {
    write(std::as_bytes(std::span(sample.ids)));
  }
  offsets_.push_back(offsets_.back() + sample.ids.size());
  const auto size = static_cast<std::uint32_t>(sample.ids.size());
  for (std::uint32_t i = 0; i < size;) {
    if (sample.trained[i] == 0) {
      ++i;
      continue;
    }
    const std::uint32_t begin = i;
    while (i < size && sample.trained[i] != 0) ++i;
    spans_.push_back({begin, i});
  }
  span_index_.push_back(spans_.size());
  labelled_ = labelled_ || sample.label >= 0;
  labels_.push_back(sample.label);
  parts_.insert(parts_.end(), sample.parts.begin(), sample.parts.end());
  part_index_.push_back(parts_.size());
}

template <typename T>
std::uint64_t TokenWriter::table(const std::vector<T>& values) {
  constexpr std::byte kZeros[8] = {};
  write(std::span(kZeros).first((8 - written_ % 8) % 8));
  const std::uint64_t at = written_;
  write(std::as_bytes(std::span(values)));
  return at;
}

void TokenWriter::finish(const DataReport& report) {
  const std::string text = dump_json(report.to_json());
  Footer footer;
  footer.documents = offsets_.size() - 1;
  footer.tokens = offsets_.back();
  footer.spans = spans_.size();
  footer.offsets_at = table(offsets_);
  footer.span_index_at = table(span_index_);
  footer.spans_at = table(spans_);
  if (labelled_) {
    footer.labels = labels_.size();
    footer.parts = parts_.size();
    footer.labels_at = table(labels_);
    footer.part_index_at = table(part_index_);
    footer.parts_at = table(parts_);
  }
  footer.report_at = table(std::vector<char>(text.begin(), text.end()));
  footer.report_bytes = text.size();
  footer.checksum = hasher_.value();
  footer.own_checksum = checksum_of(footer);
  sink_(std::as_bytes(std::span(&footer, 1)));
}

}  // namespace convoy
