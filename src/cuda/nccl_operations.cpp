#include "cuda/nccl_operations.h"

#include <fmt/format.h>

#include <array>

#include "base/hash.h"
#include "program/program.h"

namespace convoy {
namespace {

constexpr std::size_t kSmall = std::size_t{128} << 10;  // bytes that every rank sums whole

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    default:
      throw internal_error("only floating-point numbers are summed over ranks");
  }
}

}  // namespace

void NcclCommunicator::meet(const char* operation, DType dtype, std::uint64_t shape) {
  Hasher hash;
  hash.add(std::string(operation));
  const std::uint64_t fields[] = {static_cast<std::uint64_t>(dtype), shape};
  hash.add(std::as_bytes(std::span(fields)));
  join_late();
  marks_.assign(static_cast<std::size_t>(size()), 0);
  const auto own = static_cast<std::size_t>(rank());
  marks_[own] = hash.value();
  const GatherPiece piece{reinterpret_cast<const std::byte*>(&marks_[own]),
                          reinterpret_cast<std::byte*>(marks_.data()),
                          {std::int64_t{8} * size(), 8}};
  or_abort([&] { host_->all_gather(DType::kU8, std::span(&piece, 1)); });
  for (std::size_t r = 0; r < marks_.size(); ++r) {
    if (marks_[r] == marks_[own]) continue;
    throw internal_error(fmt::format("rank {} is in {} and rank {} in another operation, or in one of another size",
                                     rank(), operation, r));
  }
  ++traffic_.operations;
}

template <typename Range>
void NcclCommunicator::next_segments(int to, std::size_t pieces, std::size_t element, const Range& range) {
  Cursor& cursor = cursors_[static_cast<std::size_t>(to)];
  cursor.segments.clear();
  std::size_t left = region_;
  while (cursor.piece < pieces && left >= kLine) {
    const auto [begin, count] = range(cursor.piece, to);
    const std::int64_t take = std::min(count - cursor.at, static_cast<std::int64_t>(left / element));
    if (take > 0) cursor.segments.push_back({cursor.piece, begin + cursor.at, take});
    cursor.at += take;
    left -= std::min(left, whole_lines(static_cast<std::size_t>(take) * element));
    if (cursor.at < count) break;
    ++cursor.piece;
    cursor.at = 0;
  }
}

// Every rank sends each other one what that one sums, as much at a time as fits into a region, and adds what has come
// to its own. range(piece, rank): first element and number of what the rank sums of the piece.
template <typename Range, typename Full, typename Out>
void NcclCommunicator::sum_by_tree(DType dtype, std::size_t pieces, const Range& range, const Full& full,
                                   const Out& out) {
  const std::size_t element = size_of(dtype);
  const auto ranks = static_cast<std::size_t>(size());
  const auto own = static_cast<std::size_t>(rank());
  cursors_.resize(ranks);
  operands_.resize(ranks);
  for (Cursor& cursor : cursors_) {
    cursor.piece = 0;
    cursor.at = 0;
  }
  while (true) {
    bool any = false;
    for (int r = 0; r < size(); ++r) {
      next_segments(r, pieces, element, range);
      any = any || !cursors_[static_cast<std::size_t>(r)].segments.empty();
    }
    if (!any) return;
    const std::vector<Segment>& mine = cursors_[own].segments;
    const auto bytes = [&](const Segment& s) { return static_cast<std::size_t>(s.count) * element; };
    const auto place = [&](std::size_t from, std::size_t at) { return scratch_ + from * region_ + at; };
    if (ranks > 1) {
      group_.together("an exchange of blocks", [&](const auto& took) {
        for (std::size_t step = 1; step < ranks; ++step) {
          const std::size_t to = (own + step) % ranks;
          const std::size_t from = (own + ranks - step) % ranks;
          for (const Segment& s : cursors_[to].segments) {
            took(nccl().Send(full(s.piece) + static_cast<std::size_t>(s.begin) * element, bytes(s), ncclUint8,
                             static_cast<int>(to), group_.comm(), lane_->stream()));
          }
          std::size_t at = 0;
          for (const Segment& s : mine) {
            took(nccl().Recv(place(from, at), bytes(s), ncclUint8, static_cast<int>(from), group_.comm(),
                             lane_->stream()));
            at += whole_lines(bytes(s));
          }
        }
      });
    }
    std::size_t at = 0;
    for (const Segment& s : mine) {
      for (std::size_t r = 0; r < ranks; ++r) operands_[r] = place(r, at);
      operands_[own] = full(s.piece) + static_cast<std::size_t>(s.begin) * element;
      const std::int64_t skipped = s.begin - range(s.piece, rank()).first;
      lane_->sum(dtype, operands_, out(s.piece) + static_cast<std::size_t>(skipped) * element, s.count);
      at += whole_lines(bytes(s));
    }
  }
}

void NcclCommunicator::run_reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) {
  if (!on_device(
          pieces, [](const ScatterPiece& p) { return p.full; }, [](const ScatterPiece& p) { return p.cut.numel; })) {
    return through(*host_, [&] { host_->reduce_scatter(dtype, pieces); });
  }
  const std::size_t element = size_of(dtype);
  Hasher shape;
  std::uint64_t sent = 0;
  for (const ScatterPiece& piece : pieces) {
    shape.add(std::as_bytes(std::span(&piece.cut, 1)));
    sent += static_cast<std::uint64_t>(piece.cut.numel - piece.cut.length(rank())) * element;
  }
  meet("a reduce-scatter", dtype, shape.value());
  traffic_.reduce_scatter += sent;
  if (options_.deterministic) {
    sum_by_tree(
        dtype, pieces.size(),
        [&](std::size_t i, int r) { return std::pair(pieces[i].cut.begin(r), pieces[i].cut.length(r)); },
        [&](std::size_t i) { return pieces[i].full; }, [&](std::size_t i) { return pieces[i].shard; });
  } else {
    const ncclDataType_t type = nccl_type(dtype);
    group_.together("a reduce-scatter", [&](const auto& took) {
      for (const ScatterPiece& piece : pieces) {
        if (piece.cut.numel == piece.cut.shard * size()) {
          took(nccl().ReduceScatter(piece.full, piece.shard, static_cast<std::size_t>(piece.cut.shard), type, ncclSum,
                                    group_.comm(), lane_->stream()));
          continue;
        }
        for (int r = 0; r < size(); ++r) {
          if (piece.cut.length(r) == 0) continue;
          const std::byte* part = piece.full + static_cast<std::size_t>(piece.cut.begin(r)) * element;
          took(nccl().Reduce(part, r == rank() ? piece.shard : nullptr, static_cast<std::size_t>(piece.cut.length(r)),
                             type, ncclSum, r, group_.comm(), lane_->stream()));
        }
      }
    });
  }
  group_.finish("a reduce-scatter", sent);
}

void NcclCommunicator::gather(DType dtype, std::span<const GatherPiece> pieces) {
  const std::size_t element = size_of(dtype);
  group_.together("an all-gather", [&](const auto& took) {
    for (const GatherPiece& piece : pieces) {
      if (piece.cut.numel == piece.cut.shard * size()) {
        if (piece.cut.numel == 0) continue;
        took(nccl().AllGather(piece.shard, piece.full, static_cast<std::size_t>(piece.cut.shard) * element, ncclUint8,
                              group_.comm(), lane_->stream()));
        continue;
      }
      for (int r = 0; r < size(); ++r) {
        if (piece.cut.length(r) == 0) continue;
        std::byte* part = piece.full + static_cast<std::size_t>(piece.cut.begin(r)) * element;
        took(nccl().Broadcast(r == rank() ? piece.shard : part, part,
                              static_cast<std::size_t>(piece.cut.length(r)) * element, ncclUint8, r, group_.comm(),
                              lane_->stream()));
      }
    }
  });
}

void NcclCommunicator::run_all_gather(DType dtype, std::span<const GatherPiece> pieces) {
  if (!on_device(
          pieces, [](const GatherPiece& p) { return p.full; }, [](const GatherPiece& p) { return p.cut.numel; })) {
    return through(*host_, [&] { host_->all_gather(dtype, pieces); });
  }
  Hasher shape;
  std::uint64_t sent = 0;
  std::uint64_t whole = 0;
  for (const GatherPiece& piece : pieces) {
    shape.add(std::as_bytes(std::span(&piece.cut, 1)));
    sent +=
        static_cast<std::uint64_t>(piece.cut.length(rank())) * size_of(dtype) * static_cast<std::uint64_t>(size() - 1);
    whole += static_cast<std::uint64_t>(piece.cut.numel) * size_of(dtype);
  }
  meet("an all-gather", dtype, shape.value());
  traffic_.all_gather += sent;
  gather(dtype, pieces);
  group_.finish("an all-gather", whole);
}

// By the tree: each rank sums a part of every tensor in place, and all gather the parts; what is small all ranks sum
// whole.
void NcclCommunicator::run_all_reduce(DType dtype, std::span<const ReducePiece> pieces) {
  if (!on_device(
          pieces, [](const ReducePiece& p) { return p.data; }, [](const ReducePiece& p) { return p.numel; }))
    return through(*host_, [&] { host_->all_reduce(dtype, pieces); });
  const std::size_t element = size_of(dtype);
  Hasher shape;
  std::uint64_t total = 0;
  for (const ReducePiece& piece : pieces) {
    shape.add(std::as_bytes(std::span(&piece.numel, 1)));
    total += static_cast<std::uint64_t>(piece.numel) * element;
  }
  meet("an all-reduce", dtype, shape.value());
  traffic_.all_reduce += 2 * total * static_cast<std::uint64_t>(size() - 1) / static_cast<std::uint64_t>(size());
  const auto data = [&](std::size_t i) { return pieces[i].data; };
  if (!options_.deterministic) {
    group_.together("an all-reduce", [&](const auto& took) {
      for (const ReducePiece& piece : pieces) {
        if (piece.numel == 0) continue;
        took(nccl().AllReduce(piece.data, piece.data, static_cast<std::size_t>(piece.numel), nccl_type(dtype), ncclSum,
                              group_.comm(), lane_->stream()));
      }
    });
  } else if (total <= kSmall) {
    sum_by_tree(
        dtype, pieces.size(), [&](std::size_t i, int) { return std::pair(std::int64_t{0}, pieces[i].numel); }, data,
        data);
  } else {
    parts_.clear();
    gathered_.clear();
    for (const ReducePiece& piece : pieces) {
      const ShardCut cut = cut_evenly(piece.numel, 16, size());
      std::byte* part = piece.data + static_cast<std::size_t>(cut.begin(rank())) * element;
      parts_.push_back({piece.data, part, cut});
      gathered_.push_back({part, piece.data, cut});
    }
    sum_by_tree(
        dtype, pieces.size(),
        [&](std::size_t i, int r) { return std::pair(parts_[i].cut.begin(r), parts_[i].cut.length(r)); }, data,
        [&](std::size_t i) { return parts_[i].shard; });
    gather(dtype, gathered_);
  }
  group_.finish("an all-reduce", 2 * total);
}

void NcclCommunicator::broadcast(std::span<std::byte> bytes, int root) {
  check(root >= 0 && root < size(), "no such rank to broadcast from");
  direct([&] {
    if (bytes.empty() || !lane_->holds(bytes.data())) return through(*host_, [&] { host_->broadcast(bytes, root); });
    meet("a broadcast", DType::kU8, bytes.size() * static_cast<std::size_t>(size()) + static_cast<std::size_t>(root));
    if (rank() == root) traffic_.broadcast += bytes.size() * static_cast<std::size_t>(size() - 1);
    group_.together("a broadcast", [&](const auto& took) {
      took(nccl().Broadcast(bytes.data(), bytes.data(), bytes.size(), ncclUint8, root, group_.comm(), lane_->stream()));
    });
    group_.finish("a broadcast", bytes.size());
  });
}

void NcclCommunicator::all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) {
  check(send.size() == receive.size() && send.size() % static_cast<std::size_t>(size()) == 0,
        "all_to_all: blocks of different sizes");
  direct([&] {
    if (send.empty() || !lane_->holds(send.data())) return through(*host_, [&] { host_->all_to_all(send, receive); });
    meet("an all-to-all", DType::kU8, send.size());
    const std::size_t block = send.size() / static_cast<std::size_t>(size());
    traffic_.all_to_all += block * static_cast<std::size_t>(size() - 1);
    const auto own = static_cast<std::size_t>(rank()) * block;
    lane_->copy(receive.data() + own, send.data() + own, block);
    group_.together("an all-to-all", [&](const auto& took) {
      for (int step = 1; step < size(); ++step) {
        const int to = (rank() + step) % size();
        const int from = (rank() + size() - step) % size();
        took(nccl().Send(send.data() + static_cast<std::size_t>(to) * block, block, ncclUint8, to, group_.comm(),
                         lane_->stream()));
        took(nccl().Recv(receive.data() + static_cast<std::size_t>(from) * block, block, ncclUint8, from, group_.comm(),
                         lane_->stream()));
      }
    });
    group_.finish("an all-to-all", send.size());
  });
}

// Two ranks alone: they meet by words in the host's group, so that both are there before NCCL waits.
void NcclCommunicator::send(std::span<const std::byte> bytes, int to) {
  check(to >= 0 && to < size() && to != rank(), "no such other rank to send to");
  direct([&] {
    if (bytes.empty() || !lane_->holds(bytes.data())) return through(*host_, [&] { host_->send(bytes, to); });
    check(group_.joined(), "messages of a GPU's memory come after another operation on it");
    std::uint64_t length = bytes.size();
    or_abort([&] {
      host_->send(std::as_bytes(std::span(&length, 1)), to);
      host_->receive(std::as_writable_bytes(std::span(&length, 1)), to);
    });
    traffic_.point_to_point += bytes.size();
    ++traffic_.operations;
    group_.together("a send", [&](const auto& took) {
      took(nccl().Send(bytes.data(), bytes.size(), ncclUint8, to, group_.comm(), lane_->stream()));
    });
    group_.finish("a send", bytes.size());
  });
}

void NcclCommunicator::receive(std::span<std::byte> bytes, int from) {
  check(from >= 0 && from < size() && from != rank(), "no such other rank to receive from");
  direct([&] {
    if (bytes.empty() || !lane_->holds(bytes.data())) return through(*host_, [&] { host_->receive(bytes, from); });
    check(group_.joined(), "messages of a GPU's memory come after another operation on it");
    std::uint64_t length = 0;
    or_abort([&] {
      host_->receive(std::as_writable_bytes(std::span(&length, 1)), from);
      host_->send(std::as_bytes(std::span(&length, 1)), from);
    });
    if (length != bytes.size())
      throw internal_error(
          fmt::format("rank {} sent {} bytes where rank {} expects {}", from, length, rank(), bytes.size()));
    ++traffic_.operations;
    group_.together("a receive", [&](const auto& took) {
      took(nccl().Recv(bytes.data(), bytes.size(), ncclUint8, from, group_.comm(), lane_->stream()));
    });
    group_.finish("a receive", bytes.size());
  });
}

}  // namespace convoy
