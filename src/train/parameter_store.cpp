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

void ParameterStore::draw(std::size_t parameter, std::uint64_t seed) {
  const Parameter& of = model_.parameters()[parameter];
  std::vector<float> values(static_cast<std::size_t>(of.shape.numel()));
  convoy::initialize(of, parameter, seed, values);
  set_rows(parameter, 0, DType::kF32, std::as_bytes(std::span(values)));
}

void ParameterStore::initialize(std::uint64_t seed) {
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) draw(p, seed);
}

void ParameterStore::initialize_fresh(std::size_t parameter) {
  draw(parameter, shape_.seed);
}

StoredPart ParameterStore::part(Role role, std::size_t parameter, int moment) const {
  const Parameter& of = model_.parameters()[parameter];
  const std::int64_t numel = of.shape.numel();
  if (role == Role::kWeight) {
    if (!shape_.zero.shards_weight(numel)) return {&layout_.find(role, of.name), 0, numel};
    const OwnedRange owned = owned_range(shape_, numel);
    return {&layout_.find(role, shard_name(of.name)), owned.first, owned.count};
  }
  const OwnedRange owned = owned_range(shape_, numel);
  return {&layout_.find(role, role == Role::kMoment ? moment_name(moment, of.name) : of.name), owned.first,
          owned.count};
}

void ParameterStore::set_rows(std::size_t parameter, std::int64_t first_row, DType dtype,
                              std::span<const std::byte> values) {
  const Parameter& target = model_.parameters()[parameter];
  const std::int64_t width = target.shape.numel() / target.shape[0];
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t first = first_row * width;
  const std::int64_t last = first + static_cast<std::int64_t>(values.size()) / size;
  check(last <= target.shape.numel(), "rows beyond the end of a parameter");
  for (Role role : {Role::kWeight, Role::kMaster}) {
    if (role == Role::kMaster && !layout_.contains(role, target.name)) continue;
    const StoredPart held = part(role, parameter);
    const std::int64_t begin = std::max(first, held.first);
    const std::int64_t end = std::min(last, held.first + held.count);
    if (begin >= end) continue;
    const auto given = values.subspan(static_cast<std::size_t>((begin - first) * size),
                                      static_cast<std::size_t>((end - begin) * size));
    const DType stored = held.slot->spec.dtype;
    device_.copy_in(
        arenas_.base(role) + held.slot->offset + static_cast<std::size_t>(begin - held.first) * size_of(stored),
        converted(dtype, given, stored));
  }
}

Role ParameterStore::source_role(std::size_t parameter, DType dtype) const {
  const bool from_master =
      layout_.contains(Role::kMaster, model_.parameters()[parameter].name) && dtype != shape_.dtype;
  return from_master ? Role::kMaster : Role::kWeight;
}

bool ParameterStore::is_whole(std::size_t parameter, DType dtype) const {
  // Not whether this rank happens to own all of it: the ranks must agree.
  if (source_role(parameter, dtype) == Role::kMaster) return !shape_.zero.shards_state();
  return !shape_.zero.shards_weight(model_.parameters()[parameter].shape.numel());
}

std::vector<std::byte> ParameterStore::rows(std::size_t parameter, std::int64_t first_row, std::int64_t count,
                                            DType dtype) const {
  const Parameter& source = model_.parameters()[parameter];
  const Role role = source_role(parameter, dtype);
  const StoredPart held = part(role, parameter);
  check(held.count == source.shape.numel(), "a sharded parameter is read as if it were whole");
  const DType stored = held.slot->spec.dtype;
  const auto row_bytes = static_cast<std::size_t>(source.shape.numel() / source.shape[0]) * size_of(stored);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * row_bytes);
  device_.copy_out(bytes, arenas_.base(role) + held.slot->offset + static_cast<std::size_t>(first_row) * row_bytes);
  return converted(stored, bytes, dtype);
}

std::vector<std::byte> ParameterStore::gather(std::size_t parameter, DType dtype, Communicator& communicator) const {
  const Parameter& source = model_.parameters()[parameter];
  if (is_whole(parameter, dtype)) return rows(parameter, 0, source.shape[0], dtype);
  const Role role = source_role(parameter, dtype);
  const StoredPart held = part(role, parameter);
  const std::vector<std::byte> mine = converted(held.slot->spec.dtype, read(role, held), dtype);
  std::vector<std::byte> whole(static_cast<std::size_t>(source.shape.numel()) * size_of(dtype));
  const GatherPiece piece{mine.data(), whole.data(), zero_cut(source.shape.numel(), shape_.zero.world)};
  communicator.all_gather(dtype, std::span(&piece, 1));
  return whole;
}

std::vector<std::byte> ParameterStore::read(Role role, const StoredPart& part) const {
  return read_elements(role, part, 0, part.count);
}

std::vector<std::byte> ParameterStore::read_elements(Role role, const StoredPart& part, std::int64_t first,
                                                     std::int64_t count) const {
  const std::size_t size = size_of(part.slot->spec.dtype);
  check(first >= 0 && first + count <= part.count, "elements beyond the end of a part");
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size);
  device_.copy_out(bytes, arenas_.base(role) + part.slot->offset + static_cast<std::size_t>(first) * size);
  return bytes;
}

void ParameterStore::write_elements(Role role, const StoredPart& part, std::int64_t first,
                                    std::span<const std::byte> bytes) {
  const std::size_t size = size_of(part.slot->spec.dtype);
  check(first >= 0 && static_cast<std::size_t>(first) * size + bytes.size() <= part.slot->spec.bytes(),
        "elements beyond the end of a part");
  device_.copy_in(arenas_.base(role) + part.slot->offset + static_cast<std::size_t>(first) * size, bytes);
}

std::vector<std::byte> ParameterStore::read(Role role, const std::string& name) const {
  const Slot& slot = layout_.find(role, name);
  std::vector<std::byte> bytes(slot.spec.bytes());
  device_.copy_out(bytes, arenas_.base(role) + slot.offset);
  return bytes;
}

}  // namespace convoy
