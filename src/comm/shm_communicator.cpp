#include "comm/shm_communicator.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "comm/piece_stream.h"
#include "comm/queued_communicator.h"
#include "comm/shm_segment.h"
#include "comm/tree_sum.h"

namespace convoy {
namespace {

constexpr std::size_t kMailBytes = std::size_t{64} << 10;

// What one rank sends to another: one message part at a time.
struct alignas(64) Mailbox {
  std::atomic<std::uint64_t> written;  // parts put in
  std::uint64_t length;                // of the whole message
  alignas(64) std::atomic<std::uint64_t> read;
  alignas(64) std::byte bytes[kMailBytes];
};

enum class Kind : std::uint32_t { kReduceScatter = 1, kAllGather, kAllReduce, kBroadcast, kAllToAll, kBarrier };

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

class ShmCommunicator final : public QueuedCommunicator {
 public:
  explicit ShmCommunicator(const ShmOptions& options)
      : options_(options),
        chunk_(round_up(options.chunk, 64)),
        segment_({"/" + options.name, options.rank, options.size, shm_scratch_bytes(options), options.timeout_seconds}),
        operands_(static_cast<std::size_t>(options.size)),
        outgoing_(static_cast<std::size_t>(options.size)) {}

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::string name() const override { return "shm"; }
  ~ShmCommunicator() override {
    segment_.leave();
    queue_.stop();
  }

  void broadcast(std::span<std::byte> bytes, int root) override;
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override;
  void send(std::span<const std::byte> bytes, int to) override;
  void receive(std::span<std::byte> bytes, int from) override;
  void barrier() override {
    direct([&] {
      announce(Kind::kBarrier, DType::kU8, 0);
      meet(true, "a barrier");
    });
  }
  std::unique_ptr<Communicator> split(int color) override;
  void progress() override { segment_.progress(); }
  void look_around(bool suspects) override { segment_.look_around(suspects); }
  void abort(const std::string& reason) override { segment_.abort(reason); }

 private:
  // The half of a rank's scratch that belongs to a turn: a chunk of data and a chunk of sums. Turns are counted over
  // all operations, so a half is written again only after every rank has come to the meeting after the one that read
  // it.
  std::byte* half(int of, std::size_t turn) const { return segment_.scratch(of) + turn % 2 * 2 * chunk_; }
  std::byte* sums(int of, std::size_t turn) const { return half(of, turn) + chunk_; }
  std::size_t mail_bytes() const { return static_cast<std::size_t>(size()) * sizeof(Mailbox); }
  // The mailbox for what `from` sends to `to`, in the scratch of the sender.
  Mailbox& mailbox(int from, int to) const {
    std::byte* mails = segment_.scratch(from) + shm_scratch_bytes(options_) - mail_bytes();
    return reinterpret_cast<Mailbox*>(mails)[to];
  }
  void announce(Kind kind, DType dtype, std::uint64_t shape) {
    segment_.announce({static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(dtype), shape});
    ++traffic_.operations;
  }
  // Ends this turn's writing; at an operation's first meeting the announcements are compared.
  void meet(bool first, const char* operation) {
    segment_.meet();
    if (first) segment_.check_marks(operation);
    ++turn_;
  }

  double seconds_waited() const override { return segment_.seconds_waited(); }
  void run_reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) override;
  void run_all_gather(DType dtype, std::span<const GatherPiece> pieces) override;
  void run_all_reduce(DType dtype, std::span<const ReducePiece> pieces) override;

  const ShmOptions options_;
  const std::size_t chunk_;
  ShmSegment segment_;
  int splits_ = 0;
  std::size_t turn_ = 0;
  // Scratch of the operations, which run one at a time.
  std::vector<const std::byte*> operands_;
  std::vector<PieceStream<const std::byte>> outgoing_;
  PieceStream<std::byte> incoming_;
  std::vector<PieceStream<std::byte>> arriving_;
};

// Rank r's scratch has a region for each rank d: what r has for d. After a meeting d sums its regions over all r.
void ShmCommunicator::run_reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) {
  const std::size_t element = size_of(dtype);
  const std::size_t region = chunk_ / static_cast<std::size_t>(size()) / 64 * 64;
  Hasher shape;
  std::size_t longest = 0;
  incoming_.clear();
  for (int d = 0; d < size(); ++d) {
    auto& stream = outgoing_[static_cast<std::size_t>(d)];
    stream.clear();
    for (const ScatterPiece& piece : pieces) {
      stream.add(piece.full + static_cast<std::size_t>(piece.cut.begin(d)) * element,
                 static_cast<std::size_t>(piece.cut.length(d)) * element);
    }
    longest = std::max(longest, stream.bytes());
    if (d != rank()) traffic_.reduce_scatter += stream.bytes();
  }
  for (const ScatterPiece& piece : pieces) {
    shape.add(std::as_bytes(std::span(&piece.cut, 1)));
    incoming_.add(piece.shard, static_cast<std::size_t>(piece.cut.length(rank())) * element);
  }
  announce(Kind::kReduceScatter, dtype, shape.value());
  const std::size_t steps = std::max<std::size_t>(1, (longest + region - 1) / region);
  const auto copy_in = [&](std::size_t turn) {
    for (int d = 0; d < size(); ++d)
      outgoing_[static_cast<std::size_t>(d)].copy_out(half(rank(), turn) + static_cast<std::size_t>(d) * region,
                                                      region);
  };
  copy_in(turn_);
  for (std::size_t step = 0; step < steps; ++step) {
    const std::size_t turn = turn_;
    meet(step == 0, "a reduce-scatter");
    incoming_.take(region, [&](std::byte* to, std::size_t length, std::size_t at) {
      for (int r = 0; r < size(); ++r)
        operands_[static_cast<std::size_t>(r)] = half(r, turn) + static_cast<std::size_t>(rank()) * region + at;
      tree_sum(dtype, operands_, to, static_cast<std::int64_t>(length / element));
    });
    if (step + 1 < steps) copy_in(turn_);
  }
}

void ShmCommunicator::run_all_gather(DType dtype, std::span<const GatherPiece> pieces) {
  const std::size_t element = size_of(dtype);
  Hasher shape;
  auto& mine = outgoing_[0];
  mine.clear();
  arriving_.resize(static_cast<std::size_t>(size()));
  std::size_t longest = 0;
  for (int r = 0; r < size(); ++r) {
    auto& stream = arriving_[static_cast<std::size_t>(r)];
    stream.clear();
    std::size_t bytes = 0;
    for (const GatherPiece& piece : pieces) {
      const std::size_t length = static_cast<std::size_t>(piece.cut.length(r)) * element;
      stream.add(piece.full + static_cast<std::size_t>(piece.cut.begin(r)) * element, length);
      bytes += length;
    }
    longest = std::max(longest, bytes);
    if (r == rank()) traffic_.all_gather += bytes * static_cast<std::size_t>(size() - 1);
  }
  for (const GatherPiece& piece : pieces) {
    shape.add(std::as_bytes(std::span(&piece.cut, 1)));
    const std::size_t length = static_cast<std::size_t>(piece.cut.length(rank())) * element;
    mine.add(piece.shard, length);
    std::byte* place = piece.full + static_cast<std::size_t>(piece.cut.begin(rank())) * element;
    if (place != piece.shard && length > 0) std::memmove(place, piece.shard, length);
  }
  announce(Kind::kAllGather, dtype, shape.value());
  const std::size_t steps = std::max<std::size_t>(1, (longest + chunk_ - 1) / chunk_);
  mine.copy_out(half(rank(), turn_), chunk_);
  for (std::size_t step = 0; step < steps; ++step) {
    const std::size_t turn = turn_;
    meet(step == 0, "an all-gather");
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) arriving_[static_cast<std::size_t>(r)].copy_in(half(r, turn), chunk_);
    }
    if (step + 1 < steps) mine.copy_out(half(rank(), turn_), chunk_);
  }
}

// Small: everyone sums everything after one meeting. Large: everyone sums a part of the chunk into its scratch, and
// after the next meeting all copy the sums out.
void ShmCommunicator::run_all_reduce(DType dtype, std::span<const ReducePiece> pieces) {
  constexpr std::size_t kSmall = std::size_t{16} << 10;
  const std::size_t element = size_of(dtype);
  Hasher shape;
  auto& mine = outgoing_[0];
  mine.clear();
  incoming_.clear();
  for (const ReducePiece& piece : pieces) {
    shape.add(std::as_bytes(std::span(&piece.numel, 1)));
    mine.add(piece.data, static_cast<std::size_t>(piece.numel) * element);
    incoming_.add(piece.data, static_cast<std::size_t>(piece.numel) * element);
  }
  const std::size_t total = mine.bytes();
  traffic_.all_reduce += 2 * total * static_cast<std::size_t>(size() - 1) / static_cast<std::size_t>(size());
  announce(Kind::kAllReduce, dtype, shape.value());
  const auto ranks = static_cast<std::size_t>(size());
  if (total <= kSmall) {
    const std::size_t turn = turn_;
    mine.copy_out(half(rank(), turn), total);
    meet(true, "an all-reduce");
    incoming_.take(total, [&](std::byte* to, std::size_t length, std::size_t at) {
      for (std::size_t r = 0; r < ranks; ++r) operands_[r] = half(static_cast<int>(r), turn) + at;
      tree_sum(dtype, operands_, to, static_cast<std::int64_t>(length / element));
    });
    return;
  }
  const std::size_t chunks = (total + chunk_ - 1) / chunk_;
  mine.copy_out(half(rank(), turn_), chunk_);
  for (std::size_t i = 0; i <= chunks; ++i) {
    const std::size_t turn = turn_;
    meet(i == 0, "an all-reduce");
    if (i < chunks) {
      const std::size_t count = std::min(chunk_, total - i * chunk_) / element;
      const std::size_t part = round_up((count + ranks - 1) / ranks, 16);
      const std::size_t begin = std::min(count, part * static_cast<std::size_t>(rank()));
      const std::size_t end = std::min(count, begin + part);
      for (std::size_t r = 0; r < ranks; ++r) operands_[r] = half(static_cast<int>(r), turn) + begin * element;
      tree_sum(dtype, operands_, sums(rank(), turn) + begin * element, static_cast<std::int64_t>(end - begin));
    }
    if (i > 0) {
      const std::size_t count = std::min(chunk_, total - (i - 1) * chunk_) / element;
      const std::size_t part = round_up((count + ranks - 1) / ranks, 16);
      for (std::size_t r = 0; r < ranks; ++r) {
        const std::size_t begin = std::min(count, part * r);
        const std::size_t end = std::min(count, begin + part);
        incoming_.copy_in(sums(static_cast<int>(r), turn + 1) + begin * element, (end - begin) * element);
      }
    }
    if (i + 1 < chunks) mine.copy_out(half(rank(), turn_), chunk_);
  }
}

void ShmCommunicator::broadcast(std::span<std::byte> bytes, int root) {
  check(root >= 0 && root < size(), "no such rank to broadcast from");
  direct([&] {
    announce(Kind::kBroadcast, DType::kU8,
             bytes.size() * static_cast<std::size_t>(size()) + static_cast<std::size_t>(root));
    if (rank() == root) traffic_.broadcast += bytes.size() * static_cast<std::size_t>(size() - 1);
    for (std::size_t at = 0; at == 0 || at < bytes.size(); at += chunk_) {
      const std::size_t length = std::min(chunk_, bytes.size() - at);
      const std::size_t turn = turn_;
      if (rank() == root && length > 0) std::memcpy(half(root, turn), bytes.data() + at, length);
      meet(at == 0, "a broadcast");
      if (rank() != root && length > 0) std::memcpy(bytes.data() + at, half(root, turn), length);
    }
  });
}

void ShmCommunicator::all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) {
  const auto ranks = static_cast<std::size_t>(size());
  check(send.size() == receive.size() && send.size() % ranks == 0, "all_to_all: blocks of different sizes");
  direct([&] {
    const std::size_t block = send.size() / ranks;
    const std::size_t region = chunk_ / ranks / 64 * 64;
    announce(Kind::kAllToAll, DType::kU8, send.size());
    traffic_.all_to_all += block * (ranks - 1);
    for (std::size_t at = 0; at == 0 || at < block; at += region) {
      const std::size_t length = std::min(region, block - at);
      const std::size_t turn = turn_;
      for (std::size_t d = 0; d < ranks && length > 0; ++d)
        std::memcpy(half(rank(), turn) + d * region, send.data() + d * block + at, length);
      meet(at == 0, "an all-to-all");
      for (std::size_t r = 0; r < ranks && length > 0; ++r) {
        std::memcpy(receive.data() + r * block + at,
                    half(static_cast<int>(r), turn) + static_cast<std::size_t>(rank()) * region, length);
      }
    }
  });
}

void ShmCommunicator::send(std::span<const std::byte> bytes, int to) {
  check(to >= 0 && to < size() && to != rank(), "no such other rank to send to");
  direct([&] {
    Mailbox& box = mailbox(rank(), to);
    traffic_.point_to_point += bytes.size();
    ++traffic_.operations;
    for (std::size_t at = 0; at == 0 || at < bytes.size(); at += kMailBytes) {
      const std::uint64_t part = box.written.load(std::memory_order_relaxed);
      segment_.wait_until(to, "a send", [&] { return box.read.load(std::memory_order_acquire) == part; });
      segment_.progress();
      box.length = bytes.size();
      const std::size_t length = std::min(kMailBytes, bytes.size() - at);
      if (length > 0) std::memcpy(box.bytes, bytes.data() + at, length);
      box.written.store(part + 1, std::memory_order_release);
      segment_.wake();
    }
  });
}

void ShmCommunicator::receive(std::span<std::byte> bytes, int from) {
  check(from >= 0 && from < size() && from != rank(), "no such other rank to receive from");
  direct([&] {
    Mailbox& box = mailbox(from, rank());
    ++traffic_.operations;
    for (std::size_t at = 0; at == 0 || at < bytes.size(); at += kMailBytes) {
      const std::uint64_t part = box.read.load(std::memory_order_relaxed);
      segment_.wait_until(from, "a receive", [&] { return box.written.load(std::memory_order_acquire) > part; });
      segment_.progress();
      if (box.length != bytes.size()) {
        throw internal_error(
            fmt::format("rank {} sent {} bytes where rank {} expects {}", from, box.length, rank(), bytes.size()));
      }
      const std::size_t length = std::min(kMailBytes, bytes.size() - at);
      if (length > 0) std::memcpy(bytes.data() + at, box.bytes, length);
      box.read.store(part + 1, std::memory_order_release);
      segment_.wake();
    }
  });
}

std::unique_ptr<Communicator> ShmCommunicator::split(int color) {
  const Place place = place_among(color);
  ShmOptions group = options_;
  group.name = fmt::format("{}-{}-{}", options_.name, splits_++, color);
  group.rank = place.rank;
  group.size = place.size;
  return group.size == 1 ? make_single_communicator() : make_shm_communicator(group);
}

}  // namespace

std::size_t shm_scratch_bytes(const ShmOptions& options) {
  return 4 * round_up(options.chunk, 64) + static_cast<std::size_t>(options.size) * sizeof(Mailbox);
}

std::unique_ptr<Communicator> make_shm_communicator(const ShmOptions& options) {
  check(options.size > 1, "one rank needs no shared memory");
  return std::make_unique<ShmCommunicator>(options);
}

}  // namespace convoy
