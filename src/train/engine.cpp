#include "train/engine.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace convoy {
namespace {

constexpr std::size_t kMostStarted = 256;                                       // statistics that wait to be read
constexpr std::size_t kStatisticsBytes = 2 * kLossStatistics * sizeof(double);  // of the loss, and of one beside it

}  // namespace

LossTotals& LossTotals::operator+=(const LossTotals& other) {
  loss_sum += other.loss_sum;
  targets += other.targets;
  correct += other.correct;
  auxiliary_sum += other.auxiliary_sum;
  auxiliary_targets += other.auxiliary_targets;
  return *this;
}

Engine::Engine(Device& device, const Model& model, const TrainShape& shape, Communicator* communicator)
    : device_(device),
      model_(model),
      shape_(shape),
      communicator_(communicator),
      masks_padding_(model.audio() && model.audio()->masks_padding),
      programs_(make_programs(model, shape, device)),
      arenas_(device, programs_.sizes),
      store_(device, model, programs_.layout, arenas_, shape) {
  buckets_.resize(shape.buckets());
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) prepare_bucket(bucket);
  if (programs_.reduce) reduce_ = std::make_unique<Executor>(device, *programs_.reduce, arenas_, communicator);
  if (shape.training) prepare_update();
  statistics_ = device.allocate_host(kMostStarted * kStatisticsBytes);
  started_.reserve(kMostStarted);
  losses_.reserve(kMostStarted);
  for (const Slot& slot : programs_.layout.slots(Role::kBatch)) {
    if (!slot.name.starts_with(batch_input::kRowKeys)) continue;
    row_keys_.emplace_back(slot.name, std::vector<std::uint64_t>(static_cast<std::size_t>(slot.spec.numel())));
  }
  enter({});
}

void Engine::prepare_bucket(std::size_t index) {
  const BatchPrograms& programs = programs_.of_bucket(index);
  Bucket& bucket = buckets_[index];
  bucket.shape = shape_.of_bucket(index);
  const auto prepare = [&](const Program& program) {
    return std::make_unique<Executor>(device_, program, arenas_, communicator_);
  };
  if (shape_.training) bucket.micro = prepare(programs.micro);
  if (programs.micro_accumulate) bucket.micro_accumulate = prepare(*programs.micro_accumulate);
  if (programs.eval) bucket.eval = prepare(*programs.eval);
  // What is shorter is the beginning of what is longer.
  const std::int64_t rows = std::max(shape_.training ? bucket.shape.rows : 0, bucket.shape.eval_rows);
  bucket.constants = model_.constants(graph_options(bucket.shape, GraphKind::kTrain, rows));
}

Engine::Bucket& Engine::enter(const BatchView& batch) {
  const std::size_t index = batch.bucket < 0 ? buckets_.size() - 1 : static_cast<std::size_t>(batch.bucket);
  check(index < buckets_.size(), "a batch of a bucket that was not planned");
  Bucket& bucket = buckets_[index];
  if (entered_ != index) {
    for (const BatchConstant& each : bucket.constants) put(each.name.c_str(), each.bytes);
    entered_ = index;
  }
  return bucket;
}

// Rows that are no tokens: as many for each row of the batch, keyed by its first token's key.
void Engine::put_row_keys(const TrainShape& shape, std::span<const std::uint64_t> token_keys) {
  for (auto& [name, keys] : row_keys_) {
    // Those of another shape's programs need no values.
    if (keys.size() % static_cast<std::size_t>(shape.rows) != 0) {
      check(buckets_.size() > 1, "rows of the graph that are not divided evenly among those of the batch");
      continue;
    }
    const auto each = keys.size() / static_cast<std::size_t>(shape.rows);
    for (std::size_t i = 0; i < keys.size(); ++i)
      keys[i] =
          row_key(token_keys[i / each * static_cast<std::size_t>(shape.seq)], static_cast<std::int64_t>(i % each));
    put(name.c_str(), std::as_bytes(std::span(keys)));
  }
}

void Engine::prepare_update() {
  update_ = std::make_unique<Executor>(device_, programs_.update, arenas_, communicator_);
  for (const ProgramSet::GradientRun& run : programs_.gradient_runs) {
    const TensorSpec flat{run.dtype, {static_cast<std::int64_t>(run.bytes / size_of(run.dtype))}};
    const TensorSpec* inputs[] = {&flat, &flat};
    add_gradients_.push_back(device_.prepare(AccumulateGradients{}, inputs, std::span(&flat, 1)));
  }
  partial_sums_.reserve(programs_.sizes.gradient_slots + 1);
}

std::byte* Engine::address(Role role, const std::string& name) const {
  return arenas_.base(role) + programs_.layout.find(role, name).offset;
}

void Engine::set_scalar_input(const char* name, double value) {
  const Slot& slot = programs_.layout.find(Role::kBatch, name);
  std::byte bytes[sizeof(double)];
  store_float(slot.spec.dtype, value, bytes);
  device_.copy_in(arenas_.base(Role::kBatch) + slot.offset, std::span(bytes, size_of(slot.spec.dtype)));
}

void Engine::put(const char* name, std::span<const std::byte> bytes) {
  if (!programs_.layout.contains(Role::kBatch, name)) return;
  const Slot& slot = programs_.layout.find(Role::kBatch, name);
  check(bytes.size() <= slot.spec.bytes(), "a batch is larger than the programs were made for");
  device_.copy_in(arenas_.base(Role::kBatch) + slot.offset, bytes);
}

// Where padding is masked, what of the windows is sound.
void Engine::put_heard(const Bucket& bucket, const BatchView& batch, std::int64_t rows) {
  GraphOptions options;
  options.tokens = rows * bucket.shape.seq;
  options.table_length = bucket.shape.seq;
  options.audio_windows = rows * bucket.shape.audio_windows;
  options.audio_frames = bucket.shape.audio_frames;
  model_.mark_heard(options, batch.audio_lengths, heard_);
  put(batch_input::kAudioStart, std::as_bytes(std::span(heard_.start)));
  put(batch_input::kKeyBegin, std::as_bytes(std::span(heard_.key_begin)));
  put(batch_input::kKeyEnd, std::as_bytes(std::span(heard_.key_end)));
}

void Engine::copy_batch(const Bucket& bucket, const BatchView& batch) {
  put(batch_input::kIds, std::as_bytes(batch.input_ids));
  put(batch_input::kTargets, std::as_bytes(batch.targets));
  put(batch_input::kPositions, std::as_bytes(batch.positions));
  put(batch_input::kSeqStart, std::as_bytes(batch.seq_start));
  put(batch_input::kHeadRows, std::as_bytes(batch.head_rows));
  put(batch_input::kHeadLabels, std::as_bytes(batch.head_labels));
  if (shape_.audio_windows > 0) {
    if (shape_.dtype == DType::kF64) {
      const std::vector<double> wide(batch.audio_features.begin(), batch.audio_features.end());
      put(batch_input::kAudioFeatures, std::as_bytes(std::span(wide)));
    } else {
      put(batch_input::kAudioFeatures, std::as_bytes(batch.audio_features));
    }
    put(batch_input::kAudioRows, std::as_bytes(batch.audio_rows));
  }
  if (masks_padding_) put_heard(bucket, batch, static_cast<std::int64_t>(batch.input_ids.size()) / bucket.shape.seq);
  bool whole_rows = !masks_padding_;  // windows are not
  for (std::size_t i = 0; i < batch.seq_start.size() && whole_rows; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    whole_rows = batch.seq_start[i] == at - at % bucket.shape.seq;
  }
  device_.set_whole_rows(whole_rows);

  if (!programs_.layout.contains(Role::kBatch, batch_input::kRopeCos)) return;
  const std::int64_t length = model_.tables_depend_on_length()
                                  ? 1 + *std::max_element(batch.positions.begin(), batch.positions.end())
                                  : shape_.seq;
  if (length == table_length_) return;
  table_length_ = length;
  const auto count = static_cast<std::size_t>(programs_.layout.find(Role::kBatch, batch_input::kRopeCos).spec.numel());
  std::vector<float> cosines(count), sines(count);
  model_.fill_tables(length, cosines, sines);
  put(batch_input::kRopeCos, std::as_bytes(std::span(cosines)));
  put(batch_input::kRopeSin, std::as_bytes(std::span(sines)));
}

// Before the next program writes its own there.
void Engine::start_statistics(const Program& program) {
  if (started_.size() == kMostStarted) collect_statistics();
  Started step;
  std::byte* to = statistics_->data() + started_.size() * kStatisticsBytes;
  for (const auto& [name, ref] : program.outputs) {
    const bool auxiliary = name == "auxiliary";
    step.dtype = ref.spec.dtype;
    step.auxiliary = step.auxiliary || auxiliary;
    device_.start_copy_out(std::span(to + (auxiliary ? kStatisticsBytes / 2 : 0), ref.spec.bytes()),
                           arenas_.base(ref.arena) + ref.offset, Lane::kWork);
  }
  started_.push_back(step);
}

void Engine::collect_statistics() {
  if (started_.empty()) return;
  device_.synchronize();
  for (std::size_t i = 0; i < started_.size(); ++i) {
    const DType dtype = started_[i].dtype;
    const std::byte* bytes = statistics_->data() + i * kStatisticsBytes;
    const auto at = [dtype](const std::byte* from, LossStatistic which) {
      return load_float(dtype, from + static_cast<std::size_t>(which) * size_of(dtype));
    };
    LossTotals totals{at(bytes, kLossSum), at(bytes, kTargetCount), at(bytes, kCorrectCount)};
    if (started_[i].auxiliary) {
      totals.auxiliary_sum = at(bytes + kStatisticsBytes / 2, kLossSum);
      totals.auxiliary_targets = at(bytes + kStatisticsBytes / 2, kTargetCount);
    }
    losses_.push_back(totals);
  }
  started_.clear();
}

std::vector<LossTotals> Engine::take_losses() {
  collect_statistics();
  std::vector<LossTotals> taken(losses_.begin(), losses_.end());
  losses_.clear();
  return taken;
}

LossTotals Engine::take_last() {
  collect_statistics();
  const LossTotals last = losses_.back();
  losses_.pop_back();
  return last;
}

// Adds the top partial sum of the stack into the one below it.
void Engine::merge_top() {
  const std::size_t top = partial_sums_.size() - 1;
  for (std::size_t run = 0; run < add_gradients_.size(); ++run) {
    const std::size_t offset = programs_.gradient_runs[run].offset;
    std::byte* inputs[] = {arenas_.base(Role::kGradient, top) + offset,
                           arenas_.base(Role::kGradient, top - 1) + offset};
    std::byte* outputs[] = {inputs[1]};
    add_gradients_[run]->run({inputs, outputs, arenas_.workspace()});
  }
  partial_sums_[top - 1] += partial_sums_[top];
  partial_sums_.pop_back();
}

// The binary tree: two neighbours that hold equally many micro-batches are summed; a subtree that is complete on this
// rank is summed over the ranks first.
void Engine::merge_complete() {
  const std::int64_t period = shape_.reduce_period();
  while (true) {
    const std::size_t count = partial_sums_.size();
    if (partial_sums_[count - 1] == period && !top_reduced_ && reduce_) {
      reduce_->run(count - 1);
      top_reduced_ = true;
    }
    if (count < 2) return;
    const bool complete = partial_sums_[count - 1] == partial_sums_[count - 2];
    const bool in_one_buffer = !shape_.deterministic && shape_.zero.shards_gradients();
    if (!complete && !in_one_buffer) return;
    merge_top();
  }
}

LossTotals Engine::micro_step(const BatchView& batch, double scale, double auxiliary_scale) {
  start_micro_step(batch, scale, auxiliary_scale);
  return take_last();
}

void Engine::start_micro_step(const BatchView& batch, double scale, double auxiliary_scale) {
  check(shape_.training, "no training was planned");
  Bucket& bucket = enter(batch);
  copy_batch(bucket, batch);
  put(batch_input::kTokenKeys, std::as_bytes(batch.token_keys));
  put_row_keys(bucket.shape, batch.token_keys);
  put(batch_input::kHeadKeys, std::as_bytes(batch.head_keys));
  set_scalar_input(batch_input::kLossScale, scale);
  if (programs_.layout.contains(Role::kBatch, batch_input::kAuxiliaryScale))
    set_scalar_input(batch_input::kAuxiliaryScale, auxiliary_scale);
  top_reduced_ = false;
  if (bucket.micro_accumulate && !partial_sums_.empty()) {
    bucket.micro_accumulate->run(0);
    ++partial_sums_[0];
    start_statistics(bucket.micro_accumulate->program());
    return merge_complete();
  }
  check(partial_sums_.size() < programs_.sizes.gradient_slots, "more micro-batches than planned");
  bucket.micro->run(partial_sums_.size());
  partial_sums_.push_back(1);
  start_statistics(bucket.micro->program());
  merge_complete();
}

UpdateResult Engine::update(double learning_rate, std::int64_t step, double unscale) {
  check(!partial_sums_.empty(), "an update without a micro-batch");
  if (reduce_) {
    std::int64_t done = 0;
    for (const std::int64_t count : partial_sums_) done += count;
    check(done % shape_.reduce_period() == 0, "an update before the ranks' gradients are summed");
  }
  while (partial_sums_.size() > 1) merge_top();
  partial_sums_.clear();
  double scalars[kUpdateScalars] = {};
  scalars[kLearningRate] = learning_rate;
  scalars[kStepNumber] = static_cast<double>(step);
  scalars[kUnscale] = unscale;
  device_.copy_in(address(Role::kBatch, kUpdateScalarsName), std::as_bytes(std::span(scalars)));
  update_->run(0);
  double norm[kNormStatistics];
  const BufferRef& ref = programs_.update.output("norm");
  device_.copy_out(std::as_writable_bytes(std::span(norm)), arenas_.base(ref.arena) + ref.offset);
  return {norm[kNorm], norm[kNonFinite] != 0};
}

LossTotals Engine::evaluate(const BatchView& batch) {
  start_evaluate(batch);
  return take_last();
}

void Engine::start_evaluate(const BatchView& batch) {
  Bucket& bucket = enter(batch);
  check(bucket.eval != nullptr, "no evaluation was planned");
  copy_batch(bucket, batch);
  bucket.eval->run();
  start_statistics(bucket.eval->program());
}

std::vector<Executor*> Engine::executors() const {
  std::vector<Executor*> all;
  const auto add = [&](const std::unique_ptr<Executor>& executor) {
    if (executor) all.push_back(executor.get());
  };
  for (const Bucket& bucket : buckets_) {
    add(bucket.micro);
    add(bucket.micro_accumulate);
    add(bucket.eval);
  }
  add(reduce_);
  add(update_);
  return all;
}

std::size_t Engine::eval_high_water() const {
  std::size_t most = 0;
  for (const Bucket& bucket : buckets_) {
    if (bucket.eval) most = std::max(most, bucket.eval->high_water(Role::kActivation));
  }
  return most;
}

void Engine::set_trace(Trace* trace) {
  for (Executor* executor : executors()) executor->set_trace(trace);
}

void Engine::set_timing(bool on) {
  for (Executor* executor : executors()) executor->set_timing(on);
}

Executor::Timing Engine::take_timing() {
  Executor::Timing sum;
  for (Executor* executor : executors()) {
    const Executor::Timing part = executor->take_timing();
    sum.forward += part.forward;
    sum.backward += part.backward;
    sum.recompute += part.recompute;
    sum.update += part.update;
    sum.waiting += part.waiting;
  }
  return sum;
}

std::vector<std::byte> Engine::gradient(std::size_t parameter) const {
  return store_.read(Role::kGradient, owned_name(shape_, model_.parameters()[parameter].name));
}

}  // namespace convoy
