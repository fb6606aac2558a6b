#include "train/parameter_store.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/parallel.h"

namespace convoy {

double load_float(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kF32: {
      float v;
      std::memcpy(&v, at, sizeof(v));
      return v;
    }
    case DType::kBF16: {
      BF16 v;
      std::memcpy(&v, at, sizeof(v));
      return to_float(v);
    }
    case DType::kF16: {
      F16 v;
      std::memcpy(&v, at, sizeof(v));
      return to_float(v);
    }
    case DType::kF64: {
      double v;
      std::memcpy(&v, at, sizeof(v));
      return v;
    }
    default:
      throw internal_error("not a floating dtype");
  }
}

void store_float(DType dtype, double value, std::byte* at) {
  switch (dtype) {
    case DType::kF32: {
      const auto v = static_cast<float>(value);
      std::memcpy(at, &v, sizeof(v));
      return;
    }
    case DType::kBF16: {
      const BF16 v = to_bf16(static_cast<float>(value));
      std::memcpy(at, &v, sizeof(v));
      return;
    }
    case DType::kF16: {
      const F16 v = to_f16(static_cast<float>(value));
      std::memcpy(at, &v, sizeof(v));
      return;
    }
    case DType::kF64:
      std::memcpy(at, &value, sizeof(value));
      return;
    default:
      throw internal_error("not a floating dtype");
  }
}

namespace {

std::vector<std::byte> converted(DType from, std::span<const std::byte> values, DType to) {
  if (from == to) return {values.begin(), values.end()};
  constexpr std::size_t kPiece = 1 << 16;
  const std::size_t count = values.size() / size_of(from);
  std::vector<std::byte> result(count * size_of(to));
  parallel_for(static_cast<std::int64_t>((count + kPiece - 1) / kPiece), [&](std::int64_t piece) {
    const std::size_t begin = static_cast<std::size_t>(piece) * kPiece;
    const std::size_t end = std::min(count, begin + kPiece);
    for (std::size_t i = begin; i < end; ++i) {
      store_float(to, load_float(from, values.data() + i * size_of(from)), result.data() + i * size_of(to));
    }
  });
  return result;
}

}  // namespace

void ParameterStore::initialize(std::uint64_t seed) {
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    const Parameter& parameter = model_.parameters()[p];
    std::vector<float> values(static_cast<std::size_t>(parameter.shape.numel()));
    convoy::initialize(parameter, p, seed, values);
    set_rows(p, 0, DType::kF32, std::as_bytes(std::span(values)));
  }
}

void ParameterStore::set_rows(std::size_t parameter, std::int64_t first_row, DType dtype,
                              std::span<const std::byte> values) {
  const Parameter& target = model_.parameters()[parameter];
  const std::int64_t width = target.shape.numel() / target.shape[0];
  for (Role role : {Role::kWeight, Role::kMaster}) {
    if (!layout_.contains(role, target.name)) continue;
    const Slot& slot = layout_.find(role, target.name);
    const std::size_t size = size_of(slot.spec.dtype);
    const std::vector<std::byte> bytes = converted(dtype, values, slot.spec.dtype);
    const auto start = static_cast<std::size_t>(first_row * width) * size;
    check(start + bytes.size() <= slot.spec.bytes(), "rows beyond the end of a parameter");
    device_.copy_in(arenas_.base(role) + slot.offset + start, bytes);
  }
}

std::vector<std::byte> ParameterStore::rows(std::size_t parameter, std::int64_t first_row, std::int64_t count,
                                            DType dtype) const {
  const Parameter& source = model_.parameters()[parameter];
  const bool from_master =
      layout_.contains(Role::kMaster, source.name) && dtype != layout_.find(Role::kWeight, source.name).spec.dtype;
  const Role role = from_master ? Role::kMaster : Role::kWeight;
  const Slot& slot = layout_.find(role, source.name);
  const auto row_bytes = static_cast<std::size_t>(source.shape.numel() / source.shape[0]) * size_of(slot.spec.dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * row_bytes);
  device_.copy_out(bytes, arenas_.base(role) + slot.offset + static_cast<std::size_t>(first_row) * row_bytes);
  return converted(slot.spec.dtype, bytes, dtype);
}

std::vector<std::byte> ParameterStore::read(Role role, const std::string& name) const {
  const Slot& slot = layout_.find(role, name);
  std::vector<std::byte> bytes(slot.spec.bytes());
  device_.copy_out(bytes, arenas_.base(role) + slot.offset);
  return bytes;
}

void ParameterStore::write(Role role, const std::string& name, std::span<const std::byte> bytes) {
  const Slot& slot = layout_.find(role, name);
  check(bytes.size() == slot.spec.bytes(), "state of the wrong size");
  device_.copy_in(arenas_.base(role) + slot.offset, bytes);
}

}  // namespace convoy
