// The header of a safetensors file: a SAX reader, because a tree would hide duplicate names and cost quadratic time.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace convoy {
namespace {

constexpr std::array<std::pair<std::string_view, DType>, 8> kStored{{{"F32", DType::kF32},
                                                                     {"BF16", DType::kBF16},
                                                                     {"F16", DType::kF16},
                                                                     {"F64", DType::kF64},
                                                                     {"I64", DType::kI64},
                                                                     {"I32", DType::kI32},
                                                                     {"U8", DType::kU8},
                                                                     {"BOOL", DType::kU8}}};
constexpr std::array<std::string_view, 13> kUnsupported{"I8",      "I16",     "U16",     "U32",         "U64",
                                                        "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
                                                        "F4",      "F6_E2M3", "C64"};

// One tensor while its fields come in.
struct Pending {
  SafetensorsTensor tensor;
  std::vector<std::int64_t> shape;
  std::vector<std::uint64_t> offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
  std::uint64_t end = 0;
};

class HeaderReader {
 public:
  using Integer = Json::number_integer_t;
  using Unsigned = Json::number_unsigned_t;
  using Float = Json::number_float_t;
  using String = Json::string_t;
  using Binary = Json::binary_t;

  explicit HeaderReader(std::string file) : file_(std::move(file)) {}

  std::vector<Pending>& tensors() { return tensors_; }
  SafetensorsMetadata& metadata() { return metadata_; }
  Error fault(const std::string& what) const { return data_error(what).at(where()); }

  // --- the events of nlohmann's SAX interface
  bool null() { return unexpected("null"); }
  bool boolean(bool value) { return unexpected(value ? "true" : "false"); }
  bool number_integer(Integer value) {
    throw fault(fmt::format("{} holds the negative number {}", field_text(), value));
  }
  bool number_unsigned(Unsigned value);
  bool number_float(Float, const String& text) { return unexpected(text); }
  bool string(String& value);
  bool binary(Binary&) { return unexpected("binary data"); }
  bool key(String& name);
  bool start_object(std::size_t);
  bool end_object();
  bool start_array(std::size_t);
  bool end_array();
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& failure) {
    std::string reason = failure.what();
    if (const std::size_t cut = reason.find(": "); cut != std::string::npos) reason = reason.substr(cut + 2);
    throw data_error(fmt::format("the header is not valid JSON: {}", reason))
        .at(fmt::format("{}, byte {}", file_, 8 + position));
  }

 private:
  enum class Level { kStart, kTop, kTensor, kShape, kOffsets, kMetadata, kDone };

  std::string where() const {
    if (level_ == Level::kMetadata) return file_ + ", __metadata__";
    if (level_ == Level::kTensor || level_ == Level::kShape || level_ == Level::kOffsets) {
      return fmt::format("{}, tensor '{}'", file_, tensors_.back().tensor.name);
    }
    return file_;
  }
  std::string field_text() const { return field_.empty() ? "the header" : "'" + field_ + "'"; }
  bool unexpected(std::string_view value) {
    throw fault(fmt::format("{} holds {}, which has no place there", field_text(), value));
  }
  void set_dtype(const std::string& name);
  void finish_tensor();

  std::string file_;
  Level level_ = Level::kStart;
  std::string field_;
  std::vector<Pending> tensors_;
  std::unordered_set<std::string> names_;
  SafetensorsMetadata metadata_;
  bool has_metadata_ = false;
};

bool HeaderReader::number_unsigned(Unsigned value) {
  if (level_ == Level::kShape) {
    std::vector<std::int64_t>& shape = tensors_.back().shape;
    if (value > static_cast<Unsigned>(std::numeric_limits<std::int64_t>::max())) {
      throw fault(fmt::format("'shape' holds {}, which is too large", value));
    }
    if (shape.size() == Shape::kMaxRank) {
      throw fault(fmt::format("'shape' has more than {} dimensions, the most that Convoy knows", Shape::kMaxRank));
    }
    shape.push_back(static_cast<std::int64_t>(value));
  } else if (level_ == Level::kOffsets) {
    if (tensors_.back().offsets.size() == 2) throw fault("'data_offsets' holds more than two numbers");
    tensors_.back().offsets.push_back(value);
  } else {
    unexpected(std::to_string(value));
  }
  return true;
}

bool HeaderReader::string(String& value) {
  if (level_ == Level::kMetadata) {
    metadata_[field_] = value;
  } else if (level_ == Level::kTensor && field_ == "dtype") {
    set_dtype(value);
  } else {
    unexpected("\"" + value + "\"");
  }
  return true;
}

bool HeaderReader::key(String& name) {
  if (level_ == Level::kMetadata) {
    if (metadata_.contains(name)) throw fault(fmt::format("the key '{}' stands twice", name));
  } else if (level_ == Level::kTensor) {
    Pending& pending = tensors_.back();
    bool* seen = name == "dtype"          ? &pending.has_dtype
                 : name == "shape"        ? &pending.has_shape
                 : name == "data_offsets" ? &pending.has_offsets
                                          : nullptr;
    if (seen == nullptr) throw fault(fmt::format("unknown field '{}' (known: dtype, shape, data_offsets)", name));
    if (*seen) throw fault(fmt::format("the field '{}' stands twice", name));
    *seen = true;
  } else if (name == "__metadata__") {
    if (std::exchange(has_metadata_, true)) throw fault("'__metadata__' stands twice");
  } else if (!names_.insert(name).second) {
    throw fault(fmt::format("the tensor '{}' stands twice", name));
  }
  field_ = name;
  return true;
}

bool HeaderReader::start_object(std::size_t) {
  if (level_ == Level::kStart) {
    level_ = Level::kTop;
  } else if (level_ == Level::kTop && field_ == "__metadata__") {
    level_ = Level::kMetadata;
  } else if (level_ == Level::kTop) {
    level_ = Level::kTensor;
    tensors_.emplace_back().tensor.name = field_;
  } else {
    unexpected("an object");
  }
  return true;
}

bool HeaderReader::end_object() {
  if (level_ == Level::kTensor) finish_tensor();
  level_ = level_ == Level::kTop ? Level::kDone : Level::kTop;
  field_.clear();
  return true;
}

bool HeaderReader::start_array(std::size_t) {
  if (level_ == Level::kTensor && field_ == "shape") {
    level_ = Level::kShape;
  } else if (level_ == Level::kTensor && field_ == "data_offsets") {
    level_ = Level::kOffsets;
  } else {
    unexpected("a list");
  }
  return true;
}

bool HeaderReader::end_array() {
  level_ = Level::kTensor;
  return true;
}

void HeaderReader::set_dtype(const std::string& name) {
  SafetensorsTensor& tensor = tensors_.back().tensor;
  for (const auto& [stored, dtype] : kStored) {
    if (stored != name) continue;
    tensor.spec.dtype = dtype;
    tensor.boolean = name == "BOOL";
    return;
  }
  if (std::find(kUnsupported.begin(), kUnsupported.end(), name) != kUnsupported.end()) {
    throw fault(fmt::format("the dtype {} is one that Convoy does not read", name))
        .mend("convert the weights to BF16, F16 or F32 first (quantized weights: take the unquantized model)");
  }
  throw fault(fmt::format("unknown dtype '{}'", name));
}

void HeaderReader::finish_tensor() {
  Pending& pending = tensors_.back();
  for (const auto& [present, name] : {std::pair{pending.has_dtype, "dtype"}, std::pair{pending.has_shape, "shape"},
                                      std::pair{pending.has_offsets, "data_offsets"}}) {
    if (!present) throw fault(fmt::format("the field '{}' is missing", name));
  }
  if (pending.offsets.size() != 2) throw fault("'data_offsets' needs two numbers");
  const std::uint64_t begin = pending.offsets[0];
  const std::uint64_t end = pending.offsets[1];
  if (begin > end) throw fault(fmt::format("'data_offsets' [{}, {}] run backwards", begin, end));
  std::int64_t size = static_cast<std::int64_t>(size_of(pending.tensor.spec.dtype));
  for (const std::int64_t dim : pending.shape) {
    if (__builtin_mul_overflow(size, dim, &size)) throw fault("the product of 'shape' overflows 64 bits");
  }
  pending.tensor.spec.shape = Shape(pending.shape);
  if (static_cast<std::uint64_t>(size) != end - begin) {
    throw fault(fmt::format("{} takes {} bytes, but 'data_offsets' [{}, {}] span {}", pending.tensor.spec.str(), size,
                            begin, end, end - begin));
  }
  pending.tensor.begin = begin;
  pending.end = end;
}

// What stands where a header should, said in the user's terms; nothing when it looks like none of these.
std::optional<Error> foreign_format(std::span<const std::byte> bytes, const std::string& file) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("version https://git-lfs")) {
    return storage_error("this is a Git LFS pointer, not the weights themselves")
        .at(file)
        .mend("fetch the weights with 'git lfs pull', or download the file again");
  }
  if (text.starts_with("PK\x03\x04") || text.starts_with("\x80\x02")) {
    return data_error("this is a PyTorch pickle, not a safetensors file")
        .at(file)
        .mend("convert it to safetensors: Convoy reads no pickles, which can run code");
  }
  if (text.starts_with("GGUF")) {
    return data_error("this is a GGUF file, not a safetensors file")
        .at(file)
        .mend("take the model in safetensors form");
  }
  if (text.starts_with("<!DOCTYPE") || text.starts_with("<html")) {
    return data_error("this is a web page, not a safetensors file")
        .at(file)
        .mend("download the file again (was a login or a licence asked for?)");
  }
  return std::nullopt;
}

// Orders the tensors by their bytes and checks that these fill the file's data part with neither hole nor overlap.
void place_tensors(std::vector<Pending>& tensors, std::uint64_t data_begin, std::uint64_t data_size,
                   const std::string& file) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const Pending& a, const Pending& b) {
    return std::pair(a.tensor.begin, a.end) < std::pair(b.tensor.begin, b.end);
  });
  std::uint64_t cursor = 0;
  const Pending* previous = nullptr;
  for (Pending& pending : tensors) {
    const std::string where = fmt::format("{}, tensor '{}'", file, pending.tensor.name);
    if (pending.tensor.begin < cursor) {
      throw data_error(fmt::format("its data overlaps that of '{}' (it begins at {}, the other ends at {})",
                                   previous->tensor.name, pending.tensor.begin, cursor))
          .at(where);
    }
    if (pending.tensor.begin > cursor) {
      throw data_error(fmt::format("{} bytes before its data belong to no tensor", pending.tensor.begin - cursor))
          .at(where);
    }
    if (pending.end > data_size) {
      throw storage_error(fmt::format("the file is cut short: the data ends at byte {}, the file has {} bytes of data",
                                      pending.end, data_size))
          .at(where)
          .mend("download or copy the file again");
    }
    cursor = pending.end;
    pending.tensor.begin += data_begin;
    previous = &pending;
  }
  if (cursor != data_size) {
    throw data_error(fmt::format("{} bytes at the end belong to no tensor", data_size - cursor)).at(file);
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes, const std::string& file) {
  if (std::optional<Error> foreign = foreign_format(bytes, file)) throw *foreign;
  if (bytes.size() < 8) {
    throw storage_error(fmt::format("the file has {} bytes: too short for a safetensors header", bytes.size()))
        .at(file)
        .mend("download or copy the file again");
  }
  static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  if (length > kMaxSafetensorsHeader) {
    throw data_error(fmt::format("the header length {} is over the limit of {} bytes: not a safetensors file, or a "
                                 "damaged one",
                                 length, kMaxSafetensorsHeader))
        .at(file);
  }
  const std::uint64_t rest = bytes.size() - 8;
  if (length > rest) {
    throw storage_error(fmt::format("the file is cut short: its header has {} bytes, but only {} follow", length, rest))
        .at(file)
        .mend("download or copy the file again");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  if (!text.starts_with('{')) throw data_error("the header does not begin with '{'").at(file);

  HeaderReader reader(file);
  Json::sax_parse(text.begin(), text.end(), &reader);
  place_tensors(reader.tensors(), 8 + length, rest - length, file);

  SafetensorsHeader header;
  header.metadata = std::move(reader.metadata());
  header.tensors.reserve(reader.tensors().size());
  for (Pending& pending : reader.tensors()) {
    header.index.emplace(pending.tensor.name, header.tensors.size());
    header.tensors.push_back(std::move(pending.tensor));
  }
  return header;
}

}  // namespace convoy
