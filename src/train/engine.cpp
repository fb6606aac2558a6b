#include "train/engine.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace convoy {
namespace {

constexpr std::size_t kMostStarted = 256;  // statistics that wait to be read
constexpr std::size_t kStatisticsBytes = kLossStatistics * sizeof(double);

}  // namespace

LossTotals& LossTotals::operator+=(const LossTotals& other) {
  loss_sum += other.loss_sum;
  targets += other.targets;
  correct += other.correct;
  return *this;
}

Engine::Engine(Device& device, const Model& model, const TrainShape& shape, Communicator* communicator)
    : device_(device),
      model_(model),
      shape_(shape),
      communicator_(communicator),
      programs_(make_programs(model, shape, device)),
      arenas_(device, programs_.sizes),
      store_(device, model, programs_.layout, arenas_, shape) {
  const auto prepare = [&](const Program& program) {
    return std::make_unique<Executor>(device, program, arenas_, communicator);
  };
  micro_ = prepare(programs_.micro);
  if (programs_.micro_accumulate) micro_accumulate_ = prepare(*programs_.micro_accumulate);
  if (programs_.eval) eval_ = prepare(*programs_.eval);
  if (programs_.reduce) reduce_ = prepare(*programs_.reduce);
  update_ = prepare(programs_.update);
  const DType wide = accumulation_dtype(shape.dtype);
  const TensorSpec flat{
      wide,
      {static_cast<std::int64_t>(programs_.sizes.bytes[static_cast<std::size_t>(Role::kGradient)] / size_of(wide))}};
  const TensorSpec* inputs[] = {&flat, &flat};
  add_gradients_ = device.prepare(AccumulateGradients{}, inputs, std::span(&flat, 1));
  partial_sums_.reserve(programs_.sizes.gradient_slots + 1);
  statistics_ = device.allocate_host(kMostStarted * kStatisticsBytes);
  started_.reserve(kMostStarted);
  losses_.reserve(kMostStarted);
  // What is shorter is the beginning of what is longer.
  const std::int64_t rows = std::max(shape.rows, shape.eval_rows);
  for (const BatchConstant& each : model.constants(graph_options(shape, GraphKind::kTrain, rows)))
    put(each.name.c_str(), each.bytes);
  for (const Slot& slot : programs_.layout.slots(Role::kBatch)) {
    if (!slot.name.starts_with(batch_input::kRowKeys)) continue;
    const std::int64_t count = slot.spec.numel();
    check(count % shape.rows == 0, "rows of the graph that are not divided evenly among those of the batch");
    row_keys_.emplace_back(slot.name, std::vector<std::uint64_t>(static_cast<std::size_t>(count)));
  }
}

// Rows that are no tokens: as many for each row of the batch, keyed by its first token's key.
void Engine::put_row_keys(std::span<const std::uint64_t> token_keys) {
  for (auto& [name, keys] : row_keys_) {
    const auto each = keys.size() / static_cast<std::size_t>(shape_.rows);
    for (std::size_t i = 0; i < keys.size(); ++i)
      keys[i] = row_key(token_keys[i / each * static_cast<std::size_t>(shape_.seq)], static_cast<std::int64_t>(i % each));
    put(name.c_str(), std::as_bytes(std::span(keys)));
  }
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

void Engine::copy_batch(const BatchView& batch) {
  put(batch_input::kIds, std::as_bytes(batch.input_ids));
  put(batch_input::kTargets, std::as_bytes(batch.targets));
  put(batch_input::kPositions, std::as_bytes(batch.positions));
  put(batch_input::kSeqStart, std::as_bytes(batch.seq_start));
  if (shape_.audio_windows > 0) {
    if (shape_.dtype == DType::kF64) {
      const std::vector<double> wide(batch.audio_features.begin(), batch.audio_features.end());
      put(batch_input::kAudioFeatures, std::as_bytes(std::span(wide)));
    } else {
      put(batch_input::kAudioFeatures, std::as_bytes(batch.audio_features));
    }
    put(batch_input::kAudioRows, std::as_bytes(batch.audio_rows));
  }
  bool whole_rows = true;
  for (std::size_t i = 0; i < batch.seq_start.size() && whole_rows; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    whole_rows = batch.seq_start[i] == at - at % shape_.seq;
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
  const BufferRef& ref = program.output("statistics");
  std::byte* to = statistics_->data() + started_.size() * kStatisticsBytes;
  device_.start_copy_out(std::span(to, ref.spec.bytes()), arenas_.base(ref.arena) + ref.offset, Lane::kWork);
  started_.push_back(ref.spec.dtype);
}

void Engine::collect_statistics() {
  if (started_.empty()) return;
  device_.synchronize();
  for (std::size_t i = 0; i < started_.size(); ++i) {
    const std::byte* bytes = statistics_->data() + i * kStatisticsBytes;
    const auto at = [&](LossStatistic which) {
      return load_float(started_[i], bytes + static_cast<std::size_t>(which) * size_of(started_[i]));
    };
    losses_.push_back({at(kLossSum), at(kTargetCount), at(kCorrectCount)});
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
  std::byte* inputs[] = {arenas_.base(Role::kGradient, top), arenas_.base(Role::kGradient, top - 1)};
  std::byte* outputs[] = {inputs[1]};
  add_gradients_->run({inputs, outputs, arenas_.workspace()});
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

LossTotals Engine::micro_step(const BatchView& batch, double scale) {
  start_micro_step(batch, scale);
  return take_last();
}

void Engine::start_micro_step(const BatchView& batch, double scale) {
  copy_batch(batch);
  put(batch_input::kTokenKeys, std::as_bytes(batch.token_keys));
  put_row_keys(batch.token_keys);
  set_scalar_input(batch_input::kLossScale, scale);
  top_reduced_ = false;
  if (micro_accumulate_ && !partial_sums_.empty()) {
    micro_accumulate_->run(0);
    ++partial_sums_[0];
    start_statistics(micro_accumulate_->program());
    return merge_complete();
  }
  check(partial_sums_.size() < programs_.sizes.gradient_slots, "more micro-batches than planned");
  micro_->run(partial_sums_.size());
  partial_sums_.push_back(1);
  start_statistics(micro_->program());
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
  check(eval_ != nullptr, "no evaluation was planned");
  copy_batch(batch);
  eval_->run();
  start_statistics(eval_->program());
}

std::vector<Executor*> Engine::executors() const {
  std::vector<Executor*> all;
  for (const auto* executor : {&micro_, &micro_accumulate_, &eval_, &reduce_, &update_}) {
    if (*executor) all.push_back(executor->get());
  }
  return all;
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
