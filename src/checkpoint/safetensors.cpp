#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "base/suggest.h"

namespace convoy {
namespace {

std::string_view stored_name(const SafetensorsTensor& tensor) {
  if (tensor.boolean) return "BOOL";
  switch (tensor.spec.dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF64:
      return "F64";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kU8:
      return "U8";
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      break;  // never stored
  }
  throw internal_error("an element type without a safetensors name");
}

}  // namespace

// Compact JSON with the keys in this order is what other writers of the
// format make, so that equal tensors give equal files.
std::string safetensors_header(std::span<const SafetensorsTensor> tensors, const SafetensorsMetadata& metadata) {
  std::string json = "{";
  const auto quoted = [](const std::string& text) { return Json(text).dump(); };
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (json.back() != '{') json += ',';
      json += quoted(key) + ":" + quoted(value);
    }
    json += '}';
  }
  std::uint64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (json.size() > 1) json += ',';
    json += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", quoted(tensor.name),
                        stored_name(tensor), fmt::join(tensor.spec.shape.dims(), ","), offset,
                        offset + tensor.spec.bytes());
    offset += tensor.spec.bytes();
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(json.size() >> (8 * i));
  return bytes + json;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), mapped_(path), header_(parse_safetensors_header(mapped_.bytes(), path.string())) {}

const SafetensorsTensor* SafetensorsFile::lookup(const std::string& name) const {
  const auto found = header_.index.find(name);
  return found == header_.index.end() ? nullptr : &header_.tensors[found->second];
}

SafetensorsFile::Found SafetensorsFile::find(const std::string& name) const {
  if (const SafetensorsTensor* tensor = lookup(name)) return {tensor->spec, bytes(*tensor)};
  std::vector<std::string> known;
  known.reserve(header_.tensors.size());
  for (const SafetensorsTensor& tensor : header_.tensors) known.push_back(tensor.name);
  throw data_error(fmt::format("there is no tensor '{}'{}", name, did_you_mean(name, known))).at(path_.string());
}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsTensor& tensor) const {
  return mapped_.bytes().subspan(tensor.begin, tensor.spec.bytes());
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsTensor> tensors,
                                     const SafetensorsMetadata& metadata)
    : tensors_(std::move(tensors)), out_(path) {
  std::unordered_set<std::string> names;
  for (const SafetensorsTensor& tensor : tensors_) {
    check(tensor.name != "__metadata__", "a tensor cannot be named __metadata__");
    check(!tensor.boolean || tensor.spec.dtype == DType::kU8, "a boolean tensor has one byte an element");
    if (!names.insert(tensor.name).second) {
      throw internal_error(fmt::format("the tensor '{}' is declared twice", tensor.name)).at(path.string());
    }
  }
  const std::string header = safetensors_header(tensors_, metadata);
  if (header.size() - 8 > kMaxSafetensorsHeader) {
    throw data_error(fmt::format("the header takes {} bytes, over the format's limit of {}", header.size() - 8,
                                 kMaxSafetensorsHeader))
        .at(path.string())
        .mend("write the tensors to several files (a smaller max_shard_size)");
  }
  std::uint64_t begin = header.size();
  for (SafetensorsTensor& tensor : tensors_) {
    tensor.begin = begin;
    begin += tensor.spec.bytes();
  }
  out_.write(header);
  skip_complete();
}

void SafetensorsWriter::skip_complete() {
  while (current_ < tensors_.size() && written_ == tensors_[current_].spec.bytes()) {
    ++current_;
    written_ = 0;
  }
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> piece) {
  if (piece.empty()) return;
  if (current_ == tensors_.size() || tensors_[current_].name != name) {
    throw internal_error(fmt::format(
        "bytes of the tensor '{}' come out of order: {}", name,
        current_ == tensors_.size() ? "all tensors are complete" : "'" + tensors_[current_].name + "' comes next"));
  }
  if (piece.size() > tensors_[current_].spec.bytes() - written_) {
    throw internal_error(
        fmt::format("the tensor '{}' is given more than its {} bytes", name, tensors_[current_].spec.bytes()));
  }
  out_.write(piece);
  written_ += piece.size();
  skip_complete();
}

FileDigest SafetensorsWriter::close() {
  if (current_ != tensors_.size()) {
    throw internal_error(fmt::format("the tensor '{}' is incomplete: {} of {} bytes were written",
                                     tensors_[current_].name, written_, tensors_[current_].spec.bytes()));
  }
  return out_.close();
}

std::uint64_t SafetensorsWriter::file_size(std::span<const SafetensorsTensor> tensors,
                                           const SafetensorsMetadata& metadata) {
  std::uint64_t size = safetensors_header(tensors, metadata).size();
  for (const SafetensorsTensor& tensor : tensors) size += tensor.spec.bytes();
  return size;
}

}  // namespace convoy
