#include "checkpoint/train_state.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/suggest.h"

namespace convoy {
namespace {

// JSON has no infinities and no NaN: they are written as the words that JavaScript and Python use.
Json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

// Takes the keys of one object; finish() complains about those that nobody took.
class Fields {
 public:
  Fields(const Json& object, std::string where, std::string prefix)
      : object_(object), where_(std::move(where)), prefix_(std::move(prefix)) {
    if (!object.is_object()) {
      throw data_error(prefix_.empty() ? "the training state is not a JSON object"
                                       : fmt::format("'{}' is not an object", prefix_))
          .at(where_);
    }
  }

  void take(const char* key, std::int64_t& out) { out = integer(key, need(key)); }
  void take(const char* key, std::uint64_t& out) {
    const Json& value = need(key);
    if (!value.is_number_unsigned()) throw wrong(key, "a whole number that is not negative");
    out = value.get<std::uint64_t>();
  }
  void take(const char* key, double& out) { out = real(key, need(key)); }
  void take(const char* key, std::optional<double>& out) {
    const Json& value = need(key);
    if (!value.is_null()) out = real(key, value);
  }
  void take(const char* key, std::string& out) {
    const Json& value = need(key);
    if (!value.is_string()) throw wrong(key, "a string");
    out = value.get<std::string>();
  }
  void take(const char* key, std::map<std::string, std::int64_t>& out) {
    const Json& value = need(key);
    if (!value.is_object()) throw wrong(key, "an object");
    for (const auto& [name, entry] : value.items()) out[name] = integer(fmt::format("{}.{}", key, name), entry);
  }
  // The object under `key`, or nothing where it is null.
  std::optional<Fields> object(const char* key) {
    const Json& value = need(key);
    if (value.is_null()) return std::nullopt;
    return Fields(value, where_, prefix_ + key + ".");
  }
  void finish() const {
    for (const auto& [key, value] : object_.items()) {
      if (taken_.contains(key)) continue;
      const std::vector<std::string> known(taken_.begin(), taken_.end());
      throw data_error(fmt::format("unknown key '{}{}'{}", prefix_, key, did_you_mean(key, known))).at(where_);
    }
  }
  Error wrong(const std::string& key, const char* expected) const {
    return data_error(fmt::format("'{}{}' is not {}", prefix_, key, expected)).at(where_);
  }

 private:
  const Json& need(const char* key) {
    taken_.insert(key);
    const auto found = object_.find(key);
    if (found == object_.end()) throw data_error(fmt::format("the key '{}{}' is missing", prefix_, key)).at(where_);
    return *found;
  }
  std::int64_t integer(const std::string& key, const Json& value) const {
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() ||
                       value.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
    if (!fits) throw wrong(key, "a whole number");
    return value.get<std::int64_t>();
  }
  double real(const std::string& key, const Json& value) const {
    if (value.is_number()) return value.get<double>();
    if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (value == "Infinity") return std::numeric_limits<double>::infinity();
    if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
    throw wrong(key, "a number");
  }

  const Json& object_;
  std::string where_, prefix_;
  std::set<std::string> taken_;
};

void check_version(const Json& json, const std::string& where) {
  const auto found = json.is_object() ? json.find("format_version") : json.end();
  if (found == json.end() || !found->is_number_integer()) {
    throw data_error("this is not a training state that Convoy wrote: there is no 'format_version'").at(where);
  }
  const auto version = found->get<std::int64_t>();
  if (version > TrainingState::kFormatVersion) {
    throw data_error(fmt::format("the training state has format {}, and this version of Convoy reads formats up to {}",
                                 version, TrainingState::kFormatVersion))
        .at(where)
        .mend("resume with the newer version of Convoy that wrote it");
  }
  if (version < 1) throw data_error(fmt::format("format_version {} does not exist", version)).at(where);
}

void read_data(Fields fields, DataCursor& data) {
  fields.take("epoch", data.epoch);
  fields.take("position", data.position);
  fields.take("samples_seen", data.samples_seen);
  fields.take("tokens_seen", data.tokens_seen);
  fields.take("fingerprint", data.fingerprint);
  fields.finish();
}

void read_loss_scale(Fields fields, LossScaleState& state) {
  fields.take("scale", state.scale);
  fields.take("iteration", state.iteration);
  fields.take("last_overflow", state.last_overflow);
  fields.take("hysteresis", state.hysteresis);
  fields.finish();
}

void read_plateau(Fields fields, PlateauMemory& state) {
  fields.take("learning_rate", state.learning_rate);
  fields.take("best", state.best);
  fields.take("bad_evaluations", state.bad_evaluations);
  fields.take("cooldown", state.cooldown);
  fields.finish();
}

void read_best(Fields fields, BestMetric& best) {
  fields.take("name", best.name);
  fields.take("value", best.value);
  fields.take("step", best.step);
  fields.finish();
}

}  // namespace

Json to_json(const TrainingState& state) {
  Json json;
  json["format_version"] = TrainingState::kFormatVersion;
  json["convoy_version"] = state.convoy_version;
  json["step"] = state.step;
  json["adam_step"] = state.adam_step;
  json["schedule_step"] = state.schedule_step;
  json["skipped_steps"] = state.skipped_steps;
  json["global_batch_size"] = state.global_batch_size;
  json["seed"] = state.seed;
  json["data_seed"] = state.data_seed;
  json["data"] = {{"epoch", state.data.epoch},
                  {"position", state.data.position},
                  {"samples_seen", state.data.samples_seen},
                  {"tokens_seen", state.data.tokens_seen},
                  {"fingerprint", state.data.fingerprint}};
  json["counters"] = Json::object();
  for (const auto& [name, value] : state.counters) json["counters"][name] = value;
  json["loss_scale"] = nullptr;
  if (state.loss_scale) {
    json["loss_scale"] = {{"scale", number(state.loss_scale->scale)},
                          {"iteration", state.loss_scale->iteration},
                          {"last_overflow", state.loss_scale->last_overflow},
                          {"hysteresis", state.loss_scale->hysteresis}};
  }
  json["plateau"] = nullptr;
  if (state.plateau) {
    json["plateau"] = {{"learning_rate", number(state.plateau->learning_rate)},
                       {"best", state.plateau->best ? number(*state.plateau->best) : Json(nullptr)},
                       {"bad_evaluations", state.plateau->bad_evaluations},
                       {"cooldown", state.plateau->cooldown}};
  }
  const auto metric = [](const std::optional<BestMetric>& best) -> Json {
    if (!best) return nullptr;
    return {{"name", best->name}, {"value", number(best->value)}, {"step", best->step}};
  };
  json["best"] = metric(state.best);
  json["best_saved"] = metric(state.best_saved);
  return json;
}

TrainingState training_state_from_json(const Json& json, const std::string& where) {
  check_version(json, where);
  TrainingState state;
  Fields fields(json, where, "");
  std::int64_t version = 0;
  fields.take("format_version", version);
  fields.take("convoy_version", state.convoy_version);
  fields.take("step", state.step);
  fields.take("adam_step", state.adam_step);
  fields.take("schedule_step", state.schedule_step);
  fields.take("skipped_steps", state.skipped_steps);
  fields.take("global_batch_size", state.global_batch_size);
  fields.take("seed", state.seed);
  fields.take("data_seed", state.data_seed);
  std::optional<Fields> data = fields.object("data");
  if (!data) throw fields.wrong("data", "an object");
  read_data(std::move(*data), state.data);
  fields.take("counters", state.counters);
  if (auto inner = fields.object("loss_scale")) read_loss_scale(std::move(*inner), state.loss_scale.emplace());
  if (auto inner = fields.object("plateau")) read_plateau(std::move(*inner), state.plateau.emplace());
  if (auto inner = fields.object("best")) read_best(std::move(*inner), state.best.emplace());
  if (auto inner = fields.object("best_saved")) read_best(std::move(*inner), state.best_saved.emplace());
  fields.finish();
  return state;
}

std::string training_state_text(const TrainingState& state) {
  return dump_json(to_json(state));
}

TrainingState read_training_state(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / kTrainingStateFile;
  const std::string text = read_file(path);
  Json json;
  try {
    json = parse_json(text, path.string());
  } catch (const Error& error) {
    throw data_error(error.message()).at(error.where());  // a damaged file, not the user's configuration
  }
  return training_state_from_json(json, path.string());
}

}  // namespace convoy
