#include "monitor/trainer_state.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"

namespace convoy {
namespace {

// 500 stays 500, 0.1 stays 0.1: steps may be shares of all steps.
Json steps_json(double value) {
  constexpr double kExact = 9e15;
  if (value == std::floor(value) && std::abs(value) < kExact) return static_cast<std::int64_t>(value);
  return python_number(value);
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json sorted(const LogRecord& record) {
  const Json object = json_of(record);
  return Json(nlohmann::json(object));
}

Json callbacks_json(const TrainerState& state) {
  Json callbacks = Json::object();
  if (state.early_stopping) {
    const TrainerState::EarlyStopping& stopping = *state.early_stopping;
    callbacks["EarlyStoppingCallback"] = {{"args",
                                           {{"early_stopping_patience", stopping.patience},
                                            {"early_stopping_threshold", python_number(stopping.threshold)}}},
                                          {"attributes", {{"early_stopping_patience_counter", stopping.counter}}}};
  }
  callbacks["TrainerControl"] = {{"args",
                                  {{"should_epoch_stop", false},
                                   {"should_evaluate", false},
                                   {"should_log", false},
                                   {"should_save", true},
                                   {"should_training_stop", state.should_training_stop}}},
                                 {"attributes", Json::object()}};
  return callbacks;
}

// Reads fields by name; a wrong type is an error that names the field.
class Reader {
 public:
  Reader(const Json& object, const std::string& name) : object_(object), name_(name) {}

  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  void read(const char* key, std::int64_t& value) const {
    const Json* found = find(key);
    if (found == nullptr) return;
    const std::optional<double> number = number_of(*found);
    if (!number || !(std::abs(*number) < 9e15)) throw wrong(key, "a whole number");
    value = found->is_number_integer() ? found->get<std::int64_t>() : static_cast<std::int64_t>(*number);
  }
  void read(const char* key, double& value) const {
    const Json* found = find(key);
    if (found == nullptr) return;
    const std::optional<double> number = number_of(*found);
    if (!number) throw wrong(key, "a number");
    value = *number;
  }
  void read(const char* key, bool& value) const {
    const Json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_boolean()) throw wrong(key, "true or false");
    value = found->get<bool>();
  }
  void read(const char* key, std::string& value) const {
    const Json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_string()) throw wrong(key, "a text");
    value = found->get<std::string>();
  }
  template <typename T>
  void read(const char* key, std::optional<T>& value) const {
    if (find(key) == nullptr) return;
    T inner{};
    read(key, inner);
    value = inner;
  }
  // An object inside; an empty one if it is missing.
  Reader inside(const char* key) const {
    static const Json kEmpty = Json::object();
    const Json* found = find(key);
    if (found == nullptr) return {kEmpty, name_};
    if (!found->is_object()) throw wrong(key, "an object");
    return {*found, name_};
  }
  Error wrong(const char* key, const char* wanted) const {
    return data_error(fmt::format("`{}` must be {}", key, wanted)).at(name_);
  }

 private:
  const Json& object_;
  const std::string& name_;
};

}  // namespace

std::string trainer_state_text(const TrainerState& state) {
  Json history = Json::array();
  for (const LogRecord& record : state.log_history) history.push_back(sorted(record));
  Json best_metric = nullptr;
  if (state.best_metric) best_metric = python_number(*state.best_metric);
  const Json document = {{"best_global_step", or_null(state.best_global_step)},
                         {"best_metric", best_metric},
                         {"best_model_checkpoint", or_null(state.best_model_checkpoint)},
                         {"epoch", python_number(state.epoch)},
                         {"eval_steps", steps_json(state.eval_steps)},
                         {"global_step", state.global_step},
                         {"is_hyper_param_search", false},
                         {"is_local_process_zero", true},
                         {"is_world_process_zero", true},
                         {"log_history", history},
                         {"logging_steps", steps_json(state.logging_steps)},
                         {"max_steps", state.max_steps},
                         {"num_input_tokens_seen", state.num_input_tokens_seen},
                         {"num_train_epochs", state.num_train_epochs},
                         {"save_steps", steps_json(state.save_steps)},
                         {"stateful_callbacks", callbacks_json(state)},
                         {"total_flos", python_number(state.total_flos)},
                         {"train_batch_size", state.train_batch_size},
                         {"trial_name", nullptr},
                         {"trial_params", nullptr}};
  return dump_python_json(document);
}

TrainerState parse_trainer_state(const std::string& text, const std::string& name) {
  Json document;
  try {
    document = parse_python_json(text, name);
  } catch (const Error& error) {
    throw data_error(error.message()).at(error.where());
  }
  if (!document.is_object()) throw data_error("a trainer state must be a JSON object").at(name);
  const Reader reader(document, name);
  TrainerState state;
  reader.read("best_global_step", state.best_global_step);
  reader.read("best_metric", state.best_metric);
  reader.read("best_model_checkpoint", state.best_model_checkpoint);
  reader.read("epoch", state.epoch);
  reader.read("eval_steps", state.eval_steps);
  reader.read("global_step", state.global_step);
  reader.read("logging_steps", state.logging_steps);
  reader.read("max_steps", state.max_steps);
  reader.read("num_input_tokens_seen", state.num_input_tokens_seen);
  reader.read("num_train_epochs", state.num_train_epochs);
  reader.read("save_steps", state.save_steps);
  reader.read("total_flos", state.total_flos);
  reader.read("train_batch_size", state.train_batch_size);
  if (const Json* history = reader.find("log_history")) {
    if (!history->is_array()) throw reader.wrong("log_history", "a list");
    for (const Json& entry : *history) {
      if (!entry.is_object()) throw reader.wrong("log_history", "a list of objects");
      state.log_history.push_back(record_of(entry));
    }
  }
  const Reader callbacks = reader.inside("stateful_callbacks");
  callbacks.inside("TrainerControl").inside("args").read("should_training_stop", state.should_training_stop);
  if (callbacks.find("EarlyStoppingCallback") != nullptr) {
    const Reader stopping = callbacks.inside("EarlyStoppingCallback");
    TrainerState::EarlyStopping read;
    stopping.inside("args").read("early_stopping_patience", read.patience);
    stopping.inside("args").read("early_stopping_threshold", read.threshold);
    stopping.inside("attributes").read("early_stopping_patience_counter", read.counter);
    state.early_stopping = read;
  }
  return state;
}

void write_trainer_state(const std::filesystem::path& file, const TrainerState& state) {
  write_file_atomic(file, trainer_state_text(state));
}

TrainerState read_trainer_state(const std::filesystem::path& file) {
  return parse_trainer_state(read_file(file), file.string());
}

}  // namespace convoy
