#include "comm/gloo_communicator.h"

#include <fmt/format.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <csignal>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "comm/peer_monitor.h"
#include "comm/piece_stream.h"
#include "comm/queued_communicator.h"
#include "comm/rendezvous.h"
#include "comm/tree_sum.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

// Far longer than any timeout of ours: the monitor decides who is lost, by signs of progress.
constexpr std::chrono::hours kGlooTimeout{24};
constexpr std::size_t kChunk = std::size_t{8} << 20;    // bytes under way at once
constexpr std::size_t kMessage = std::size_t{4} << 20;  // bytes of one message of Gloo at most

// Gloo's store over our rendezvous.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(RendezvousClient& client, std::string prefix, double timeout)
      : client_(client), prefix_(std::move(prefix)), timeout_(timeout) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    client_.set(prefix_ + key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = client_.wait(prefix_ + key, timeout_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) client_.wait(prefix_ + key, timeout_);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  RendezvousClient& client_;
  const std::string prefix_;
  const double timeout_;
};

class GlooCommunicator final : public QueuedCommunicator {
 public:
  GlooCommunicator(const CommunicatorOptions& options, std::string prefix)
      : options_(options), prefix_(std::move(prefix)) {
    if (options.serve_rendezvous)
      server_ = std::make_shared<RendezvousServer>(options.master_port, options.token, options.size);
    open();
  }
  GlooCommunicator(const CommunicatorOptions& options, std::string prefix, std::shared_ptr<RendezvousServer> server)
      : options_(options), prefix_(std::move(prefix)), server_(std::move(server)) {
    open();
  }
  ~GlooCommunicator() override {
    monitor_->end();
    queue_.stop();
    try {
      leave_together();
    } catch (const std::exception&) {  // leaving a broken group
    }
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::string name() const override { return "gloo"; }

  void broadcast(std::span<std::byte> bytes, int root) override {
    direct([&] {
      begin("broadcast", DType::kU8, bytes.size() * static_cast<std::size_t>(size()) + static_cast<std::size_t>(root));
      if (bytes.empty()) return;
      if (rank() == root) traffic_.broadcast += bytes.size() * static_cast<std::size_t>(size() - 1);
      Transfer transfer(*this, bytes, bytes);
      if (rank() == root) {
        for (int r = 0; r < size(); ++r) {
          if (r != root) transfer.send(r, 0, bytes.size());
        }
      } else {
        transfer.receive(root, 0, bytes.size());
      }
      transfer.finish();
    });
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override {
    check(send.size() == receive.size() && send.size() % static_cast<std::size_t>(size()) == 0,
          "all_to_all: blocks of different sizes");
    direct([&] {
      begin("all-to-all", DType::kU8, send.size());
      const std::size_t block = send.size() / static_cast<std::size_t>(size());
      traffic_.all_to_all += block * static_cast<std::size_t>(size() - 1);
      const std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), static_cast<std::int64_t>(block));
      exchange(send.data(), counts, receive.data(), counts);
    });
  }
  void send(std::span<const std::byte> bytes, int to) override {
    check(to >= 0 && to < size() && to != rank(), "no such other rank to send to");
    if (bytes.empty()) return;
    direct([&] {
      traffic_.point_to_point += bytes.size();
      Transfer transfer(*this, bytes, {}, begin_mail(rank(), to, ++sent_[static_cast<std::size_t>(to)], bytes.size()));
      transfer.send(to, 0, bytes.size());
      transfer.finish();
    });
  }
  void receive(std::span<std::byte> bytes, int from) override {
    check(from >= 0 && from < size() && from != rank(), "no such other rank to receive from");
    if (bytes.empty()) return;
    direct([&] {
      Transfer transfer(*this, {}, bytes,
                        begin_mail(from, rank(), ++received_[static_cast<std::size_t>(from)], bytes.size()));
      transfer.receive(from, 0, bytes.size());
      transfer.finish();
    });
  }
  void barrier() override {
    direct([&] {
      begin("barrier", DType::kU8, 0);
      const std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), 1);
      exchange(out_.data(), counts, in_.data(), counts);
    });
  }
  std::unique_ptr<Communicator> split(int color) override;
  void progress() override { monitor_->progress(); }
  void look_around(bool suspects) override {
    if (suspects) monitor_->suspect();
    monitor_->check();
  }
  void abort(const std::string& reason) override { monitor_->abort(reason); }

 private:
  void open();
  void leave_together();
  // Gloo matches messages by their slots, and ends the process where two that match differ in length. So a slot holds
  // a mark of the operation: ranks in different operations wait, and the monitor finds out.
  void begin(const char* operation, DType dtype, std::uint64_t shape) {
    ++traffic_.operations;
    operation_ = operation;
    Hasher hash;
    hash.add(std::string(operation));
    const std::uint64_t fields[] = {static_cast<std::uint64_t>(dtype), shape};
    hash.add(std::as_bytes(std::span(fields)));
    mark_ = hash.value();
  }
  // Slots: 46 bits that count, and 16 of the mark. Those of messages have the highest bit set, then the pair of ranks.
  std::uint64_t next_slot() { return ++slot_ << 16 | (mark_ & 0xffff); }
  std::uint64_t begin_mail(int from, int to, std::uint64_t number, std::uint64_t bytes) {
    const auto pair = static_cast<std::uint64_t>(std::int64_t{from} * size() + to);
    begin("a message", DType::kU8, pair << 40 ^ bytes);
    return std::uint64_t{1} << 63 | pair << 42 | (number & 0x3ffffff) << 16 | (mark_ & 0xffff);
  }
  // Messages between this rank and others over two buffers. The monitor can end its waiting.
  class Transfer {
   public:
    Transfer(GlooCommunicator& group, std::span<const std::byte> out, std::span<std::byte> in, std::uint64_t slot = 0)
        : group_(group), slot_(slot != 0 ? slot : group.next_slot()) {
      group_.monitor_->waits_in(group_.operation_, group_.mark_);
      if (!out.empty()) out_ = group.context_->createUnboundBuffer(const_cast<std::byte*>(out.data()), out.size());
      if (!in.empty()) in_ = group.context_->createUnboundBuffer(in.data(), in.size());
      group_.monitor_->watch(out_.get(), in_.get());
    }
    ~Transfer() {
      group_.monitor_->watch(nullptr, nullptr);
      group_.monitor_->done();
    }
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;
    // In messages that even a slow line carries within the timeout: each one that is through is a sign of progress.
    void send(int to, std::size_t at, std::size_t bytes) {
      for (std::size_t done = 0; done < bytes; done += kMessage, ++sends_)
        attempt([&] { out_->send(to, slot_, at + done, std::min(kMessage, bytes - done)); });
    }
    void receive(int from, std::size_t at, std::size_t bytes) {
      for (std::size_t done = 0; done < bytes; done += kMessage, ++receives_)
        attempt([&] { in_->recv(from, slot_, at + done, std::min(kMessage, bytes - done)); });
    }
    // Waits for all of them.
    void finish() {
      attempt([&] {
        bool done = true;
        for (; receives_ > 0 && done; --receives_, group_.monitor_->progress()) done = in_->waitRecv(kGlooTimeout);
        for (; sends_ > 0 && done; --sends_, group_.monitor_->progress()) done = out_->waitSend(kGlooTimeout);
        if (!done) throw std::runtime_error("the wait was ended");
      });
    }

   private:
    // Turns Gloo's exceptions into errors that name the lost peer.
    template <typename Operation>
    void attempt(const Operation& operation) {
      group_.monitor_->check();
      try {
        operation();
      } catch (const std::exception& failure) {
        group_.monitor_->explain(failure.what());
      }
    }
    GlooCommunicator& group_;
    const std::uint64_t slot_;
    std::unique_ptr<gloo::transport::UnboundBuffer> out_, in_;
    int sends_ = 0, receives_ = 0;
  };

  static std::size_t total(const std::vector<std::int64_t>& counts) {
    return static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  }
  // Sends out_counts[d] bytes to each rank d and receives in_counts[r] from each rank r; both lie in the order of
  // ranks.
  void exchange(const std::byte* out, const std::vector<std::int64_t>& out_counts, std::byte* in,
                const std::vector<std::int64_t>& in_counts) {
    Transfer transfer(*this, {out, total(out_counts)}, {in, total(in_counts)});
    std::size_t out_at = 0;
    std::size_t in_at = 0;
    for (int r = 0; r < size(); ++r) {
      const auto sends = static_cast<std::size_t>(out_counts[static_cast<std::size_t>(r)]);
      const auto receives = static_cast<std::size_t>(in_counts[static_cast<std::size_t>(r)]);
      if (r == rank()) {
        if (sends > 0) std::memcpy(in + in_at, out + out_at, sends);
      } else {
        transfer.receive(r, in_at, receives);
        transfer.send(r, out_at, sends);
      }
      out_at += sends;
      in_at += receives;
    }
    transfer.finish();
  }
  // Sends `count` bytes to every rank and receives counts[r] from each.
  void gather(const std::byte* mine, std::size_t count, std::byte* all, const std::vector<std::int64_t>& counts) {
    Transfer transfer(*this, {mine, count}, {all, total(counts)});
    std::size_t at = 0;
    for (int r = 0; r < size(); ++r) {
      const auto receives = static_cast<std::size_t>(counts[static_cast<std::size_t>(r)]);
      if (r == rank()) {
        if (count > 0) std::memcpy(all + at, mine, count);
      } else {
        transfer.receive(r, at, receives);
        transfer.send(r, 0, count);
      }
      at += receives;
    }
    transfer.finish();
  }

  void run_reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) override;
  void run_all_gather(DType dtype, std::span<const GatherPiece> pieces) override;
  void run_all_reduce(DType dtype, std::span<const ReducePiece> pieces) override;

  CommunicatorOptions options_;
  const std::string prefix_;
  std::shared_ptr<RendezvousServer> server_;
  std::unique_ptr<RendezvousClient> client_;
  std::unique_ptr<PeerMonitor> monitor_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  const char* operation_ = "";
  std::uint64_t mark_ = 0;
  std::vector<std::uint64_t> sent_, received_;  // messages to and from each rank
  std::uint64_t slot_ = 0;                      // operations run one at a time, in one order on all ranks
  int splits_ = 0;
  std::vector<std::byte> out_, in_;  // scratch, taken once
  std::vector<PieceStream<const std::byte>> outgoing_;
  std::vector<PieceStream<std::byte>> arriving_;
  std::vector<const std::byte*> operands_;
};

// Gloo writes to its sockets without MSG_NOSIGNAL: a peer that dies at the wrong moment would take this process with
// it, without a word. Whoever has a handler of their own keeps it.
void survive_broken_connections() {
  struct sigaction action {};
  if (::sigaction(SIGPIPE, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
      action.sa_handler == SIG_DFL)
    std::signal(SIGPIPE, SIG_IGN);
}

void GlooCommunicator::open() {
  survive_broken_connections();
  client_ = std::make_unique<RendezvousClient>(options_.master_address, options_.master_port, options_.token);
  client_->wait_for_server(options_.timeout_seconds);
  monitor_ = std::make_unique<PeerMonitor>(options_, prefix_);
  gloo::transport::tcp::attr attributes;
  attributes.hostname = options_.interface_address.empty()
                            ? address_towards(options_.master_address, options_.master_port)
                            : options_.interface_address;
  try {
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    context_ = std::make_shared<gloo::rendezvous::Context>(options_.rank, options_.size);
    context_->setTimeout(std::chrono::milliseconds(static_cast<std::int64_t>(options_.timeout_seconds * 1000)));
    GlooStore store(*client_, prefix_, options_.timeout_seconds);
    context_->connectFullMesh(store, device);
    context_->setTimeout(kGlooTimeout);
  } catch (const Error& failure) {
    if (failure.status() != Status::kPeerLost) throw;
    Error missing(Status::kPeerLost, fmt::format("rank {} cannot connect to all others: not every rank joined within "
                                                 "{:g} s ({})",
                                                 rank(), options_.timeout_seconds, failure.what()));
    if (const std::optional<std::string> stranger = server_ ? server_->refused() : std::nullopt) {
      throw missing.mend(
          fmt::format("{} was refused, which asked with another token: set the same CONVOY_JOB_TOKEN on "
                      "all hosts",
                      *stranger));
    }
    throw missing.mend("see the other ranks' output; a rank that starts later needs a larger --timeout");
  } catch (const std::exception& failure) {
    throw Error(Status::kPeerLost, fmt::format("rank {} cannot connect to all others: {}", rank(), failure.what()))
        .mend("see that every host reaches every other one on all ports");
  }
  const auto ranks = static_cast<std::size_t>(size());
  out_.resize(kChunk);
  in_.resize(kChunk);
  outgoing_.resize(ranks);
  arriving_.resize(ranks);
  operands_.resize(ranks);
  sent_.resize(ranks);
  received_.resize(ranks);
  monitor_->start();
}

// The server goes last: others may still ask it.
void GlooCommunicator::leave_together() {
  client_->add(prefix_ + "left", 1);
  if (!server_ || server_.use_count() > 1) return;
  const auto deadline = Clock::now() + std::chrono::seconds(2);
  while (client_->add(prefix_ + "left", 0) < size() && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

void GlooCommunicator::run_reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) {
  const std::size_t element = size_of(dtype);
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t region = kChunk / ranks / 64 * 64;
  std::vector<std::size_t> left(ranks);
  std::size_t longest = 0;
  PieceStream<std::byte>& mine = arriving_[0];
  mine.clear();
  for (std::size_t d = 0; d < ranks; ++d) {
    outgoing_[d].clear();
    for (const ScatterPiece& piece : pieces) {
      const int to = static_cast<int>(d);
      outgoing_[d].add(piece.full + static_cast<std::size_t>(piece.cut.begin(to)) * element,
                       static_cast<std::size_t>(piece.cut.length(to)) * element);
    }
    left[d] = outgoing_[d].bytes();
    longest = std::max(longest, left[d]);
    if (static_cast<int>(d) != rank()) traffic_.reduce_scatter += left[d];
  }
  Hasher shape;
  for (const ScatterPiece& piece : pieces) shape.add(std::as_bytes(std::span(&piece.cut, 1)));
  begin("reduce-scatter", dtype, shape.value());
  for (const ScatterPiece& piece : pieces)
    mine.add(piece.shard, static_cast<std::size_t>(piece.cut.length(rank())) * element);
  const auto own = static_cast<std::size_t>(rank());
  for (std::size_t at = 0; at == 0 || at < longest; at += region) {
    std::vector<std::int64_t> out_counts(ranks), in_counts(ranks);
    std::byte* place = out_.data();
    for (std::size_t d = 0; d < ranks; ++d) {
      const std::size_t count = outgoing_[d].copy_out(place, region);
      out_counts[d] = static_cast<std::int64_t>(count);
      place += count;
    }
    std::fill(in_counts.begin(), in_counts.end(), out_counts[own]);
    exchange(out_.data(), out_counts, in_.data(), in_counts);
    const auto count = static_cast<std::size_t>(out_counts[own]);
    mine.take(count, [&](std::byte* to, std::size_t length, std::size_t from) {
      for (std::size_t r = 0; r < ranks; ++r) operands_[r] = in_.data() + r * count + from;
      tree_sum(dtype, operands_, to, static_cast<std::int64_t>(length / element));
    });
  }
}

void GlooCommunicator::run_all_gather(DType dtype, std::span<const GatherPiece> pieces) {
  const std::size_t element = size_of(dtype);
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t region = kChunk / ranks / 64 * 64;
  std::vector<std::size_t> left(ranks);
  std::size_t longest = 0;
  PieceStream<const std::byte>& mine = outgoing_[0];
  mine.clear();
  for (std::size_t r = 0; r < ranks; ++r) {
    arriving_[r].clear();
    for (const GatherPiece& piece : pieces) {
      const int from = static_cast<int>(r);
      const std::size_t length = static_cast<std::size_t>(piece.cut.length(from)) * element;
      arriving_[r].add(piece.full + static_cast<std::size_t>(piece.cut.begin(from)) * element, length);
      if (from == rank()) mine.add(piece.shard, length);
    }
    left[r] = arriving_[r].bytes();
    longest = std::max(longest, left[r]);
  }
  Hasher shape;
  for (const GatherPiece& piece : pieces) shape.add(std::as_bytes(std::span(&piece.cut, 1)));
  begin("all-gather", dtype, shape.value());
  traffic_.all_gather += mine.bytes() * (ranks - 1);
  for (std::size_t at = 0; at == 0 || at < longest; at += region) {
    std::vector<std::int64_t> counts(ranks);
    for (std::size_t r = 0; r < ranks; ++r)
      counts[r] = static_cast<std::int64_t>(std::min(region, left[r] > at ? left[r] - at : 0));
    const std::size_t count = mine.copy_out(out_.data(), region);
    gather(out_.data(), count, in_.data(), counts);
    const std::byte* place = in_.data();
    for (std::size_t r = 0; r < ranks; ++r) {
      arriving_[r].copy_in(place, static_cast<std::size_t>(counts[r]));
      place += counts[r];
    }
  }
}

// Each rank sums a part of every chunk; then all get all parts.
void GlooCommunicator::run_all_reduce(DType dtype, std::span<const ReducePiece> pieces) {
  const std::size_t element = size_of(dtype);
  const auto ranks = static_cast<std::size_t>(size());
  PieceStream<const std::byte>& from = outgoing_[0];
  PieceStream<std::byte>& to = arriving_[0];
  from.clear();
  to.clear();
  for (const ReducePiece& piece : pieces) {
    from.add(piece.data, static_cast<std::size_t>(piece.numel) * element);
    to.add(piece.data, static_cast<std::size_t>(piece.numel) * element);
  }
  Hasher shape;
  for (const ReducePiece& piece : pieces) shape.add(std::as_bytes(std::span(&piece.numel, 1)));
  begin("all-reduce", dtype, shape.value());
  traffic_.all_reduce += 2 * from.bytes() * (ranks - 1) / ranks;
  const auto own = static_cast<std::size_t>(rank());
  for (std::size_t at = 0; at == 0 || at < to.bytes(); at += kChunk) {
    const std::size_t bytes = from.copy_out(out_.data(), kChunk);
    const ShardCut cut = cut_evenly(static_cast<std::int64_t>(bytes / element), 16, size());
    std::vector<std::int64_t> counts(ranks);
    for (std::size_t r = 0; r < ranks; ++r)
      counts[r] = cut.length(static_cast<int>(r)) * static_cast<std::int64_t>(element);
    const std::vector<std::int64_t> mine(ranks, counts[own]);
    in_.resize(std::max(in_.size(), ranks * static_cast<std::size_t>(counts[own])));
    exchange(out_.data(), counts, in_.data(), mine);
    for (std::size_t r = 0; r < ranks; ++r) operands_[r] = in_.data() + r * static_cast<std::size_t>(counts[own]);
    tree_sum(dtype, operands_, out_.data(), cut.length(rank()));
    gather(out_.data(), static_cast<std::size_t>(counts[own]), in_.data(), counts);
    to.copy_in(in_.data(), bytes);
  }
}

std::unique_ptr<Communicator> GlooCommunicator::split(int color) {
  const Place place = place_among(color);
  CommunicatorOptions group = options_;
  group.rank = place.rank;
  group.size = place.size;
  group.serve_rendezvous = false;
  const std::string prefix = fmt::format("{}{}-{}/", prefix_, splits_++, color);
  if (group.size == 1) return make_single_communicator();
  return std::make_unique<GlooCommunicator>(group, prefix, server_);
}

}  // namespace

std::size_t gloo_scratch_bytes() {
  return 2 * kChunk;
}

std::unique_ptr<Communicator> make_gloo_communicator(const CommunicatorOptions& options) {
  return std::make_unique<GlooCommunicator>(options, fmt::format("{}/", options.job));
}

}  // namespace convoy
