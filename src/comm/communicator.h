// Collective operations among the ranks of a group: the interface that runtime and train know. Backends: shared memory
// inside a host (shm), Gloo over TCP across hosts; for devices their own.
//
// Every rank of a group makes the same calls in the same order. Sums follow one fixed binary tree over the ranks
// (neighbours first: (0+1)+(2+3)), so the bits do not depend on timing. Each operation ends or throws: a rank that died
// or made no progress within the timeout is an error of status peer-lost that names it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/shard_cut.h"

namespace convoy {

// One tensor of a reduce-scatter: `shard` receives the sum over ranks of this rank's elements of `full`. `shard` may
// lie inside `full` (at its place); then the rest of `full` is left as it is.
struct ScatterPiece {
  const std::byte* full = nullptr;
  std::byte* shard = nullptr;
  ShardCut cut;
};
// One tensor of an all-gather: `full` receives every rank's shard; `shard` may lie inside `full` at its place.
struct GatherPiece {
  const std::byte* shard = nullptr;
  std::byte* full = nullptr;
  ShardCut cut;
};
// One tensor of an all-reduce, in place.
struct ReducePiece {
  std::byte* data = nullptr;
  std::int64_t numel = 0;
};

// What this rank has sent to others, in bytes, by the algorithms' formulas: all-reduce 2(n-1)/n, the others (n-1)/n of
// the whole (for shards of unequal length: the exact lengths).
struct Traffic {
  std::uint64_t reduce_scatter = 0, all_gather = 0, all_reduce = 0, broadcast = 0, all_to_all = 0, point_to_point = 0;
  std::uint64_t operations = 0;
  double seconds_waiting = 0;  // for other ranks to arrive
  std::uint64_t total() const {
    return reduce_scatter + all_gather + all_reduce + broadcast + all_to_all + point_to_point;
  }
};

class Communicator {
 public:
  // A started operation; 0 is one that is already done.
  using Ticket = std::uint64_t;

  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // of the backend
  // Whether operations take tensors in a device's memory too.
  virtual bool reaches_device_memory() const { return false; }

  // Started operations run one after another, in the order of the calls, beside the caller. The memory of the pieces
  // (and the spans of pieces themselves) must stay as it is until wait() returns. Element types: f32, f64, bf16, f16
  // (sums of 16-bit numbers are computed in f32 and rounded once).
  virtual Ticket start_reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) = 0;
  virtual Ticket start_all_gather(DType dtype, std::span<const GatherPiece> pieces) = 0;
  virtual Ticket start_all_reduce(DType dtype, std::span<const ReducePiece> pieces) = 0;
  // Returns when it and all operations started before it are done. Rethrows what went wrong.
  virtual void wait(Ticket ticket) = 0;

  // The same, finished when they return. They wait for started operations first.
  virtual void reduce_scatter(DType dtype, std::span<const ScatterPiece> pieces) = 0;
  virtual void all_gather(DType dtype, std::span<const GatherPiece> pieces) = 0;
  virtual void all_reduce(DType dtype, std::span<const ReducePiece> pieces) = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  // Block r of `send` (send.size() / size() bytes) goes to rank r; block r of `receive` comes from it.
  virtual void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) = 0;
  virtual void send(std::span<const std::byte> bytes, int to) = 0;
  virtual void receive(std::span<std::byte> bytes, int from) = 0;
  virtual void barrier() = 0;

  // Ranks that give the same colour form a group, ordered by their rank here. Every rank of this group must call.
  virtual std::unique_ptr<Communicator> split(int color) = 0;

  // Tells the others that this rank is alive and getting on: the timeout counts from a rank's last sign of progress.
  virtual void progress() = 0;
  // For whoever waits for the group's ranks by other means than this group (a GPU's collective operations): throws if
  // the group is known to be broken, else returns at once. `suspects`: something went wrong, so a rank that left counts
  // as lost too. From any thread.
  virtual void look_around(bool /*suspects*/) {}
  // Ends the group for all: the others' operations throw an error with `reason`. For a rank that fails with an error of
  // its own, before it exits.
  virtual void abort(const std::string& reason) = 0;

  virtual const Traffic& traffic() const = 0;

  // Hears when operations ran, in the thread that ran them.
  using OperationObserver = std::function<void(const char* operation, std::chrono::steady_clock::time_point begin,
                                               std::chrono::steady_clock::time_point end, std::uint64_t bytes)>;
  virtual void set_observer(const OperationObserver& /*observer*/) {}
};

// The only rank of its group: copies, and nothing to wait for.
std::unique_ptr<Communicator> make_single_communicator();

struct CommunicatorOptions {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;        // on this host
  std::string master_address = "127.0.0.1";  // of the rendezvous; rank 0 serves it unless a supervisor does
  int master_port = 0;
  std::string job;                // names the job: two jobs on one host do not meet
  std::string token;              // secret of the job: requests without it are refused
  bool serve_rendezvous = false;  // this rank opens the key-value store at master_port
  double timeout_seconds = 30;
  std::string interface_address;  // own address across hosts; empty: the one that reaches the master
};

// Memory that a rank's communicator takes, without connecting.
std::size_t communication_bytes(const CommunicatorOptions& options);
// Shared memory when all ranks are on this host, else Gloo. Returns the single communicator for size 1.
std::unique_ptr<Communicator> connect(const CommunicatorOptions& options);

}  // namespace convoy
