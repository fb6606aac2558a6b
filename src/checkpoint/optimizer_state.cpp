#include "checkpoint/optimizer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/suggest.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVersionKey = "convoy_optimizer_version";
constexpr int kVersion = 1;
constexpr const char* kSlicePrefix = "slice.";

SafetensorsMetadata metadata_of(const std::vector<OptimizerTensor>& tensors) {
  SafetensorsMetadata metadata = {{"format", "pt"}, {kVersionKey, std::to_string(kVersion)}};
  for (const OptimizerTensor& tensor : tensors) {
    if (!tensor.slice) continue;
    const Json slice = {
        {"shape", tensor.global.shape.dims()}, {"offset", tensor.slice->offset}, {"length", tensor.slice->length}};
    metadata[kSlicePrefix + tensor.name] = slice.dump();
  }
  return metadata;
}

std::vector<SafetensorsTensor> declared(const std::vector<OptimizerTensor>& tensors) {
  std::vector<SafetensorsTensor> result;
  for (const OptimizerTensor& tensor : tensors) {
    TensorSpec spec = tensor.global;
    if (tensor.slice) {
      const auto numel = static_cast<std::uint64_t>(spec.numel());
      check(tensor.slice->offset <= numel && tensor.slice->length <= numel - tensor.slice->offset,
            "an optimizer slice lies outside its tensor");
      spec.shape = Shape{static_cast<std::int64_t>(tensor.slice->length)};
    }
    result.push_back({tensor.name, spec, false, 0});
  }
  return result;
}

// The global shape and the range of one entry, from the file's metadata. Throws a data error.
OptimizerTensor describe(const SafetensorsTensor& entry, const SafetensorsMetadata& metadata,
                         const std::string& where) {
  const auto found = metadata.find(kSlicePrefix + entry.name);
  if (found == metadata.end()) return {entry.name, entry.spec, std::nullopt};
  const auto fault = [&](const std::string& what) {
    return data_error(fmt::format("the slice of this tensor is not described rightly: {}", what)).at(where);
  };
  OptimizerTensor tensor{entry.name, {}, FlatSlice{}};
  std::vector<std::int64_t> dims;
  try {
    const Json slice = Json::parse(found->second);
    for (const Json& dim : slice.at("shape")) {
      if (!dim.is_number_unsigned()) throw fault("a dimension is not a whole number");
      dims.push_back(dim.get<std::int64_t>());
    }
    if (!slice.at("offset").is_number_unsigned() || !slice.at("length").is_number_unsigned()) {
      throw fault("offset or length is not a whole number");
    }
    tensor.slice = FlatSlice{slice.at("offset").get<std::uint64_t>(), slice.at("length").get<std::uint64_t>()};
  } catch (const Json::exception& failure) {
    throw fault(failure.what());
  }
  if (dims.size() > Shape::kMaxRank) throw fault("too many dimensions");
  std::int64_t bytes = static_cast<std::int64_t>(size_of(entry.spec.dtype));
  for (const std::int64_t dim : dims) {
    if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) throw fault("the shape is too large");
  }
  tensor.global = {entry.spec.dtype, Shape(dims)};
  const auto numel = static_cast<std::uint64_t>(tensor.global.numel());
  if (tensor.slice->offset > numel || tensor.slice->length > numel - tensor.slice->offset) {
    throw fault(fmt::format("[{}, +{}] lies outside {} elements", tensor.slice->offset, tensor.slice->length, numel));
  }
  if (tensor.slice->length != static_cast<std::uint64_t>(entry.spec.numel())) {
    throw fault(fmt::format("length {}, but {} elements are stored", tensor.slice->length, entry.spec.numel()));
  }
  return tensor;
}

void check_version(const SafetensorsFile& file) {
  const auto found = file.metadata().find(kVersionKey);
  if (found == file.metadata().end()) {
    throw data_error("this is not an optimizer state that Convoy wrote: the metadata lacks its version")
        .at(file.path().string());
  }
  if (found->second != std::to_string(kVersion)) {
    throw data_error(fmt::format("the optimizer state has format {}, and this version of Convoy reads format {}",
                                 found->second, kVersion))
        .at(file.path().string())
        .mend("resume with the version of Convoy that wrote it");
  }
}

float element(const std::byte* at, DType dtype) {
  float wide = 0;
  std::uint16_t half = 0;
  if (dtype == DType::kF32) {
    std::memcpy(&wide, at, sizeof wide);
    return wide;
  }
  std::memcpy(&half, at, sizeof half);
  return dtype == DType::kBF16 ? to_float(BF16{half}) : to_float(F16{half});
}

}  // namespace

std::string master_name(const std::string& weight) {
  return "master." + weight;
}
std::string exp_avg_name(const std::string& weight) {
  return "exp_avg." + weight;
}
std::string exp_avg_sq_name(const std::string& weight) {
  return "exp_avg_sq." + weight;
}

OptimizerStateWriter::OptimizerStateWriter(const fs::path& path, const std::vector<OptimizerTensor>& tensors)
    : out_(path, declared(tensors), metadata_of(tensors)) {}

std::uint64_t OptimizerStateWriter::file_size(const std::vector<OptimizerTensor>& tensors) {
  return SafetensorsWriter::file_size(declared(tensors), metadata_of(tensors));
}

OptimizerStateReader::OptimizerStateReader(const std::vector<fs::path>& files) {
  for (const fs::path& path : files) files_.push_back(std::make_unique<SafetensorsFile>(path));
  for (std::size_t i = 0; i < files_.size(); ++i) add_file(i);
  for (auto& [name, tensor] : tensors_) check_cover(name, tensor);
}

void OptimizerStateReader::add_file(std::size_t number) {
  const SafetensorsFile& file = *files_[number];
  check_version(file);
  for (const SafetensorsTensor& entry : file.tensors()) {
    const std::string where = fmt::format("{}, tensor '{}'", file.path().string(), entry.name);
    const OptimizerTensor described = describe(entry, file.metadata(), where);
    const auto [place, fresh] = tensors_.try_emplace(entry.name);
    Tensor& tensor = place->second;
    if (fresh) tensor.spec = described.global;
    if (tensor.spec != described.global) {
      throw data_error(fmt::format("the parts of this tensor disagree: {} here, {} in {}", described.global.str(),
                                   tensor.spec.str(), files_[tensor.parts.front().file]->path().string()))
          .at(where);
    }
    const FlatSlice whole{0, static_cast<std::uint64_t>(described.global.numel())};
    tensor.parts.push_back({described.slice.value_or(whole), file.bytes(entry), number});
  }
}

void OptimizerStateReader::check_cover(const std::string& name, Tensor& tensor) const {
  std::stable_sort(tensor.parts.begin(), tensor.parts.end(), [](const Part& a, const Part& b) {
    return std::pair(a.range.offset, a.range.length) < std::pair(b.range.offset, b.range.length);
  });
  const auto numel = static_cast<std::uint64_t>(tensor.spec.numel());
  std::uint64_t cursor = 0;
  const Part* previous = nullptr;
  const auto missing = [&](std::uint64_t end) {
    return data_error(fmt::format("elements {} to {} of the optimizer tensor '{}' ({}) are in none of {} files", cursor,
                                  end, name, tensor.spec.str(), files_.size()))
        .at(files_.front()->path().string())
        .mend("the file of a rank is missing: copy the whole checkpoint folder");
  };
  for (const Part& part : tensor.parts) {
    if (part.range.offset > cursor) throw missing(part.range.offset);
    if (part.range.offset < cursor) {
      throw data_error(fmt::format("elements {} to {} of the optimizer tensor '{}' are in two places: {} and {}",
                                   part.range.offset, std::min(cursor, part.range.offset + part.range.length), name,
                                   files_[previous->file]->path().filename().string(),
                                   files_[part.file]->path().filename().string()))
          .at(files_[part.file]->path().string());
    }
    cursor += part.range.length;
    previous = &part;
  }
  if (cursor != numel) throw missing(numel);
}

std::vector<std::string> OptimizerStateReader::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

const OptimizerStateReader::Tensor& OptimizerStateReader::lookup(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  throw data_error(fmt::format("the optimizer state has no tensor '{}'{}", name, did_you_mean(name, names())))
      .at(files_.empty() ? kOptimizerFile : files_.front()->path().string());
}

TensorSpec OptimizerStateReader::spec(const std::string& name) const {
  return lookup(name).spec;
}

// visit(bytes of a piece, its first element within the range) for the pieces of [first, first + count), in order.
template <typename Visit>
void OptimizerStateReader::visit_range(const std::string& name, std::uint64_t first, std::uint64_t count,
                                       const Visit& visit) const {
  const Tensor& tensor = lookup(name);
  const auto numel = static_cast<std::uint64_t>(tensor.spec.numel());
  if (first > numel || count > numel - first) {
    throw internal_error(fmt::format("elements {} to {} lie outside the optimizer tensor '{}' ({})", first,
                                     first + count, name, tensor.spec.str()));
  }
  const std::size_t width = size_of(tensor.spec.dtype);
  for (const Part& part : tensor.parts) {
    const std::uint64_t begin = std::max(first, part.range.offset);
    const std::uint64_t end = std::min(first + count, part.range.offset + part.range.length);
    if (begin < end)
      visit(part.bytes.subspan((begin - part.range.offset) * width, (end - begin) * width), begin - first);
  }
}

void OptimizerStateReader::read_bytes(const std::string& name, std::uint64_t first, std::span<std::byte> out) const {
  const std::size_t width = size_of(lookup(name).spec.dtype);
  check(out.size() % width == 0, "a range of whole elements");
  visit_range(name, first, out.size() / width, [&](std::span<const std::byte> bytes, std::uint64_t at) {
    std::memcpy(out.data() + at * width, bytes.data(), bytes.size());
  });
}

void OptimizerStateReader::read(const std::string& name, std::uint64_t first, std::span<float> out) const {
  const DType dtype = lookup(name).spec.dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
    throw data_error(
        fmt::format("the optimizer tensor '{}' has the element type {}, not f32, bf16 or f16", name, name_of(dtype)))
        .at(files_.front()->path().string());
  }
  if (dtype == DType::kF32) return read_bytes(name, first, std::as_writable_bytes(out));
  const std::size_t width = size_of(dtype);
  visit_range(name, first, out.size(), [&](std::span<const std::byte> bytes, std::uint64_t at) {
    for (std::size_t i = 0; i * width < bytes.size(); ++i) out[at + i] = element(bytes.data() + i * width, dtype);
  });
}

std::vector<fs::path> optimizer_files(const fs::path& checkpoint) {
  if (fs::exists(checkpoint / kOptimizerFile)) return {checkpoint / kOptimizerFile};
  std::vector<fs::path> files;
  std::error_code failure;
  for (fs::directory_iterator it(checkpoint, failure), end; !failure && it != end; it.increment(failure)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with("optimizer-") && name.ends_with(".safetensors")) files.push_back(it->path());
  }
  if (failure) throw storage_error(fmt::format("cannot list {}: {}", checkpoint.string(), failure.message()));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace convoy
