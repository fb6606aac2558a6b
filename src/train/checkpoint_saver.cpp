#include "train/checkpoint_saver.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "train/keep_alive.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Another rank tells the first one through the checkpoint's folder that its file is written: writing runs beside the
// steps, whose communication it must not disturb.
fs::path digest_path(const fs::path& folder, int rank) {
  return folder / fmt::format(".rank-{:05}.json", rank);
}

void publish(const fs::path& folder, int rank, const Json& message) {
  write_file_atomic(digest_path(folder, rank), message.dump());
}

FileDigest take_digest(const fs::path& folder, int rank) {
  const fs::path path = digest_path(folder, rank);
  const Json message = Json::parse(read_file(path));
  if (message.contains("error"))
    throw storage_error(fmt::format("rank {} could not write its part: {}", rank, message["error"].get<std::string>()));
  FileDigest digest;
  digest.name = message["name"];
  digest.size = message["size"];
  digest.xxh3 = message["xxh3"];
  fs::remove(path);
  return digest;
}

}  // namespace

struct CheckpointSaver::Job {
  Clock::time_point begin = Clock::now();
  std::int64_t step = 0;
  int rank = 0;
  std::vector<int> others;  // ranks whose files the first one waits for
  fs::path folder;
  std::unique_ptr<CheckpointWriter> writer;  // on the first rank
  // What was copied.
  OptimizerSnapshot optimizer;
  std::string optimizer_file;
  bool with_optimizer = false;
  std::vector<TensorSource> weights;
  const ModelSource* source = nullptr;
  fs::path carry_from;
  std::string training_state, trainer_state;

  std::thread thread;
  std::atomic<bool> done = false;
  std::atomic<bool> abandoned = false;
  std::exception_ptr failure;
  Finished result;

  void write();
  void write_first();
  void write_other();
};

void CheckpointSaver::Job::write_other() {
  if (!with_optimizer) return;
  try {
    FileDigest digest = write_optimizer_state(folder / optimizer_file, optimizer);
    publish(folder, rank, {{"name", optimizer_file}, {"size", digest.size}, {"xxh3", digest.xxh3}});
  } catch (const std::exception& error) {
    publish(folder, rank, {{"error", error.what()}});
    throw;
  }
}

void CheckpointSaver::Job::write_first() {
  writer->record(write_trained(folder, *source, weights, carry_from));
  weights.clear();
  if (with_optimizer) {
    FileDigest digest = write_optimizer_state(folder / optimizer_file, optimizer);
    digest.name = optimizer_file;
    writer->record(digest);
    optimizer = {};
    for (const int other : others) {
      while (!fs::exists(digest_path(folder, other))) {
        if (abandoned) throw storage_error("the run ended while a checkpoint was written");
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      writer->record(take_digest(folder, other));
    }
    writer->add_text(kTrainingStateFile, training_state);
  }
  writer->add_text("trainer_state.json", trainer_state);
  result.folder = writer->commit();
}

void CheckpointSaver::Job::write() {
  try {
    if (rank == 0) {
      write_first();
    } else {
      write_other();
    }
  } catch (const fs::filesystem_error& error) {
    failure = std::make_exception_ptr(storage_error(error.what()));
  } catch (...) {
    failure = std::current_exception();
  }
  result.seconds = seconds_since(begin);
  done = true;
}

CheckpointSaver::CheckpointSaver(CheckpointStore& store, Communicator* communicator)
    : store_(store), communicator_(communicator) {}

CheckpointSaver::~CheckpointSaver() {
  if (!job_ || !job_->thread.joinable()) return;
  job_->abandoned = true;
  job_->thread.join();
}

void CheckpointSaver::start(std::int64_t step, const CheckpointContent& content) {
  check(!job_, "a checkpoint is started while another is under way");
  auto job = std::make_unique<Job>();
  job->step = step;
  job->rank = communicator_ != nullptr ? communicator_->rank() : 0;
  const bool first = job->rank == 0;
  if (first) {
    job->writer = std::make_unique<CheckpointWriter>(store_.begin(step, expected_bytes(content)));
    job->folder = job->writer->folder();
  }
  if (communicator_ != nullptr) job->folder = share_text(*communicator_, job->folder.string());
  const bool sharded = content.engine.shape().zero.shards_state();
  job->with_optimizer = !content.model_only && (first || sharded);
  job->weights =
      snapshot_weights(content.engine.store(), content.weights, content.source.folder.get(), communicator_, first);
  job->source = &content.source;
  job->carry_from = content.carry_from;
  if (job->with_optimizer) {
    job->optimizer = snapshot_optimizer(content.engine);
    job->optimizer_file = optimizer_file(content.engine);
    if (first && sharded) {
      for (int r = 1; r < communicator_->size(); ++r) job->others.push_back(r);
    }
  }
  if (!content.model_only) job->training_state = training_state_text(content.state);
  job->trainer_state = content.trainer_state;
  job->result.step = step;
  job->result.stall = seconds_since(job->begin);
  met_ = false;
  job_ = std::move(job);
  job_->thread = std::thread([raw = job_.get()] { raw->write(); });
}

std::optional<CheckpointSaver::Finished> CheckpointSaver::poll() {
  if (!job_ || !job_->done) return std::nullopt;
  if (job_->thread.joinable()) job_->thread.join();
  const std::unique_ptr<Job> job = std::move(job_);
  if (job->failure) std::rethrow_exception(job->failure);
  return job->result;
}

void CheckpointSaver::wait() {
  const auto join = [this] {
    if (!job_ || !job_->thread.joinable()) return;
    // A disk may take longer than the ranks' timeout.
    std::optional<KeepAlive> keep_alive;
    if (communicator_ != nullptr) keep_alive.emplace(*communicator_);
    job_->thread.join();
  };
  if (communicator_ == nullptr || std::exchange(met_, true)) return join();
  // The first rank's thread waits for files of the others: that none of them is lost is found out by meeting them, and
  // each comes to the meeting when its file is there.
  if (communicator_->rank() != 0) join();
  communicator_->barrier();
  join();
}

}  // namespace convoy
