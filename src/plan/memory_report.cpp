#include "plan/memory_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

namespace convoy {
namespace {

std::size_t at(Role role) {
  return static_cast<std::size_t>(role);
}

struct Choice {
  std::vector<std::string> changes;  // flags
  TrainShape shape;
};

// `choices` with and without each of the given changes, which exclude one another.
std::vector<Choice> with_options(const std::vector<Choice>& choices,
                                 const std::vector<std::pair<std::string, std::function<void(TrainShape&)>>>& options) {
  std::vector<Choice> all = choices;
  for (const Choice& choice : choices) {
    for (const auto& [flags, change] : options) {
      Choice other = choice;
      other.changes.push_back(flags);
      change(other.shape);
      all.push_back(std::move(other));
    }
  }
  return all;
}

// Each choice with its weights in host memory too, where it may have them there.
void add_weight_offload(const TrainShape& now, std::vector<Choice>& choices) {
  if (!now.has_own_memory || now.zero.offload_param) return;
  const std::size_t count = choices.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (choices[i].shape.zero.world > 1 && choices[i].shape.zero.stage < 3) continue;
    Choice other = choices[i];
    other.changes.emplace_back("--offload_param cpu");
    other.shape.zero.offload_param = true;
    choices.push_back(std::move(other));
  }
}

std::vector<Choice> evaluation_choices(const TrainShape& now) {
  std::vector<Choice> all = {{{}, now}};
  std::vector<std::pair<std::string, std::function<void(TrainShape&)>>> options;
  for (std::int64_t rows = now.eval_rows / 2; rows > 0; rows /= 2) {
    options.emplace_back(fmt::format("--per_device_eval_batch_size {}", rows),
                         [rows](TrainShape& s) { s.eval_rows = rows; });
  }
  all = with_options(all, options);
  if (now.zero.world > 1 && now.zero.stage < 3)
    all = with_options(all, {{"--zero_stage 3", [](TrainShape& s) { s.zero.stage = 3; }}});
  add_weight_offload(now, all);
  if (now.dtype == DType::kF32) all = with_options(all, {{"--bf16", [](TrainShape& s) { s.dtype = DType::kBF16; }}});
  return all;
}

// Every combination of the settings that could save memory.
std::vector<Choice> choices_from(const TrainShape& now) {
  if (!now.training) return evaluation_choices(now);
  std::vector<Choice> all = {{{}, now}};
  std::vector<std::pair<std::string, std::function<void(TrainShape&)>>> options;
  if (now.recompute == RecomputeMode::kNone) {
    options.emplace_back("--recompute selective", [](TrainShape& s) { s.recompute = RecomputeMode::kSelective; });
  }
  if (now.recompute != RecomputeMode::kFull)
    options.emplace_back("--recompute full", [](TrainShape& s) { s.recompute = RecomputeMode::kFull; });
  if (now.has_own_memory && !now.offload_activations) {  // beside full recomputation the link keeps up
    options.emplace_back(now.recompute == RecomputeMode::kFull ? "--offload_activations cpu"
                                                               : "--recompute full --offload_activations cpu",
                         [](TrainShape& s) {
                           s.recompute = RecomputeMode::kFull;
                           s.offload_activations = true;
                         });
  }
  all = with_options(all, options);
  options.clear();
  for (std::int64_t rows = now.rows; rows % 2 == 0 && now.shorter.empty();) {  // a bucket's rows follow from seconds
    rows /= 2;
    const std::int64_t accumulation = now.accumulation * (now.rows / rows);
    options.emplace_back(
        fmt::format("--per_device_train_batch_size {} --gradient_accumulation_steps {}", rows, accumulation),
        [rows, accumulation](TrainShape& s) {
          s.rows = rows;
          s.accumulation = accumulation;
          s.eval_rows = std::min(s.eval_rows, rows);
        });
  }
  all = with_options(all, options);
  if (now.deterministic)
    all = with_options(all, {{"--no-deterministic", [](TrainShape& s) { s.deterministic = false; }}});
  options.clear();
  for (int stage = now.zero.stage + 1; now.zero.world > 1 && stage <= 3; ++stage)
    options.emplace_back(fmt::format("--zero_stage {}", stage), [stage](TrainShape& s) { s.zero.stage = stage; });
  all = with_options(all, options);
  if (now.dtype != DType::kF32 && !now.narrow_gradients && !now.zero.one_bit)
    all = with_options(all, {{fmt::format("--gradient_dtype {}", name_of(now.dtype)),
                              [](TrainShape& s) { s.narrow_gradients = true; }}});
  if (now.has_own_memory && !now.offload_optimizer)
    all = with_options(all, {{"--offload_optimizer cpu", [](TrainShape& s) { s.offload_optimizer = true; }}});
  add_weight_offload(now, all);
  if (now.dtype == DType::kF32) all = with_options(all, {{"--bf16", [](TrainShape& s) { s.dtype = DType::kBF16; }}});
  return all;
}

// A number in a file of one line, or SIZE_MAX ("max", or no such file).
std::size_t number_in(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::size_t value = 0;
  return in >> value ? value : SIZE_MAX;
}

}  // namespace

MemoryReport memory_report(const ArenaSizes& sizes, std::size_t activation_lower_bound) {
  MemoryReport report;
  report.activation_lower_bound = activation_lower_bound;
  for (Role role :
       {Role::kWeight, Role::kGradient, Role::kMaster, Role::kMoment, Role::kActivation, Role::kHostActivation}) {
    if (role == Role::kHostActivation && sizes.bytes[at(role)] == 0) continue;
    const std::size_t times = role == Role::kGradient ? sizes.gradient_slots : 1;
    report.lines.push_back({std::string(name_of(role)), sizes.bytes[at(role)] * times, sizes.offloaded[at(role)]});
  }
  report.lines.push_back({"workspace", sizes.workspace});
  report.lines.push_back({std::string(name_of(Role::kBatch)), sizes.bytes[at(Role::kBatch)]});
  for (const MemoryLine& line : report.lines) (line.host ? report.host_total : report.total) += line.bytes;
  return report;
}

void add_line(MemoryReport& report, const std::string& kind, std::size_t bytes, bool host) {
  if (bytes == 0) return;
  report.lines.push_back({kind, bytes, host});
  (host ? report.host_total : report.total) += bytes;
}

std::vector<Alternative> alternatives(const Model& model, const TrainShape& shape, const WorkspaceSizes& workspaces,
                                      const BytesBeside& beside) {
  struct Measured {
    Alternative alternative;
    std::size_t changes;
    bool rounds;  // more than the run as it is
  };
  std::vector<Measured> measured;
  double flops_now = 0;
  std::size_t total_now = 0;
  for (const Choice& choice : choices_from(shape)) {
    const ProgramSet set = make_programs(model, choice.shape, workspaces);
    const std::size_t total = set.sizes.total() + (beside ? beside(choice.shape, set) : 0);
    const double flops = choice.shape.training
                             ? set.micro.cost().flops * static_cast<double>(choice.shape.accumulation)
                             : (set.eval ? set.eval->cost().flops : 0) / static_cast<double>(choice.shape.eval_rows);
    if (choice.changes.empty()) {
      flops_now = flops;
      total_now = total;
    } else if (total < total_now) {
      measured.push_back(
          {{fmt::format("{}", fmt::join(choice.changes, " ")), total, set.sizes.host_total(), flops / flops_now - 1},
           choice.changes.size(),
           choice.shape.narrow_gradients && !shape.narrow_gradients});
    }
  }
  // Only those that no other beats in bytes of the device and of the host, arithmetic, number of changes and exactness
  // at once.
  const auto beats = [](const Measured& a, const Measured& b) {
    const bool no_worse = a.alternative.total <= b.alternative.total &&
                          a.alternative.host_total <= b.alternative.host_total &&
                          a.alternative.extra_flops <= b.alternative.extra_flops + 1e-9 && a.changes <= b.changes &&
                          (!a.rounds || b.rounds);
    return no_worse && (a.alternative.total < b.alternative.total || a.changes < b.changes);
  };
  std::vector<Alternative> best;
  for (const Measured& each : measured) {
    if (std::none_of(measured.begin(), measured.end(), [&](const Measured& other) { return beats(other, each); }))
      best.push_back(each.alternative);
  }
  std::stable_sort(best.begin(), best.end(),
                   [](const Alternative& a, const Alternative& b) { return a.total > b.total; });
  return best;
}

std::size_t available_memory() {
  std::size_t available = SIZE_MAX;
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  std::size_t kib = 0;
  while (meminfo >> key >> kib) {
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") available = kib * 1024;
  }
  const std::size_t v2 = number_in("/sys/fs/cgroup/memory.max");
  const std::size_t v1 = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  return std::min({available, v2, v1});
}

std::string print(const MemoryReport& report) {
  std::string text;
  const auto add = [&](const std::string& kind, std::size_t bytes, const char* place) {
    text += fmt::format("  {:<16} {:>16} bytes  {:>12}{}\n", kind, bytes, human_bytes(bytes), place);
  };
  const bool two = report.host_total > 0;
  for (const MemoryLine& line : report.lines) add(line.kind, line.bytes, line.host ? "  of the host's" : "");
  add("total", report.total, two ? "  of the device's" : "");
  if (two) add("", report.host_total, "  of the host's");
  for (const MemoryLine& line : report.lines) {
    if (line.kind != name_of(Role::kActivation) || report.activation_lower_bound == 0) continue;
    text +=
        fmt::format("  the activations' placement is {:.2f}% above their largest live set ({} bytes)\n",
                    100.0 * (static_cast<double>(line.bytes) / static_cast<double>(report.activation_lower_bound) - 1),
                    report.activation_lower_bound);
  }
  return text;
}

std::string print(const std::vector<Alternative>& alternatives, std::size_t now) {
  std::string text;
  for (const Alternative& each : alternatives) {
    const std::string cost =
        each.extra_flops > 0.005 ? fmt::format(", {:.0f}% more arithmetic", 100 * each.extra_flops) : "";
    text += fmt::format("  {:<12} (saves {}{})  {}\n", human_bytes(each.total), human_bytes(now - each.total), cost,
                        each.settings);
  }
  return text;
}

void require_fit(const Model& model, const TrainShape& shape, const WorkspaceSizes& workspaces,
                 const MemoryReport& report, const MemoryLimit& limit, const BytesBeside& beside) {
  std::string account = print(report);
  while (account.ends_with('\n')) account.pop_back();
  if (report.host_total > limit.host) {
    throw Error(Status::kDoesNotFit,
                fmt::format("the run takes {} ({} bytes) of the host's memory and {} ({} bytes) are available",
                            human_bytes(report.host_total), report.host_total, human_bytes(limit.host), limit.host))
        .mend(
            "--no-async_save needs no copy for checkpoints, more ranks with --zero_stage 1 and above share the "
            "optimizer's state, --offload_activations none, --offload_optimizer none and --offload_param none keep "
            "things on the device; "
            "now it takes\n" +
            account);
  }
  if (report.total <= limit.device) return;
  std::vector<Alternative> fitting = alternatives(model, shape, workspaces, beside);
  // What else lies in host memory stays there.
  const std::size_t host_beside = report.host_total - make_programs(model, shape, workspaces).sizes.host_total();
  std::erase_if(fitting, [&](const Alternative& each) {
    return each.total > limit.device || (each.host_total > 0 && each.host_total + host_beside > limit.host);
  });
  Error error(Status::kDoesNotFit,
              fmt::format("the run takes {} ({} bytes) and {} ({} bytes) are available", human_bytes(report.total),
                          report.total, human_bytes(limit.device), limit.device));
  // What to do comes before the account: a supervisor repeats the beginning.
  if (fitting.empty()) {
    throw error.mend(
        "no setting makes it fit: take a smaller model, a shorter --seq_length, or a machine with more memory; "
        "now it takes\n" +
        account);
  }
  throw error.mend("these settings fit:\n" + print(fitting, report.total) + "  now it takes\n" + account);
}

}  // namespace convoy
