#include "models/freeze.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/suggest.h"
#include "models/name_pattern.h"
#include "models/wrapped_model.h"

namespace convoy {
namespace {

class FrozenModel final : public WrappedModel {
 public:
  FrozenModel(std::unique_ptr<Model> model, const std::set<std::string>& frozen, const std::string& where)
      : WrappedModel(std::move(model)) {
    set_trainable(
        mutable_parameters(), file_tensors(), [&](const FileTensor& tensor) { return !frozen.contains(tensor.name); },
        where);
  }
};

}  // namespace

void set_trainable(std::vector<Parameter>& parameters, const std::vector<FileTensor>& files,
                   const std::function<bool(const FileTensor&)>& trains, const std::string& where) {
  std::vector<const FileTensor*> first(parameters.size(), nullptr);
  for (const FileTensor& tensor : files) {
    Parameter& parameter = parameters[tensor.parameter];
    const bool trained = trains(tensor);
    const FileTensor*& before = first[tensor.parameter];
    if (before != nullptr && parameter.trainable != trained) {
      throw usage_error(fmt::format("'{}' would be {} and '{}' {}, but they are one tensor in this model", before->name,
                                    parameter.trainable ? "trained" : "frozen", tensor.name,
                                    trained ? "trained" : "frozen"))
          .at(where)
          .mend("name both or neither");
    }
    if (before == nullptr) before = &tensor;
    parameter.trainable = trained;
  }
}

std::unique_ptr<Model> freeze(std::unique_ptr<Model> model, const std::vector<std::string>& patterns,
                              const std::string& where) {
  std::set<std::string> frozen;
  std::vector<std::string> names;
  for (const FileTensor& tensor : model->file_tensors()) names.push_back(tensor.name);
  try {
    for (const std::string& text : patterns) {
      const bool trains = text.starts_with('!');
      const NamePattern pattern(trains ? text.substr(1) : text);
      bool any = false;
      for (const std::string& name : names) {
        if (!pattern.matches(name)) continue;
        any = true;
        if (trains) {
          frozen.erase(name);
        } else {
          frozen.insert(name);
        }
      }
      if (!any) {
        throw usage_error(fmt::format("'{}' matches no weight{}", text, did_you_mean(text, names)))
            .mend(fmt::format("a pattern must match the whole name of a weight, such as {}", names.front()));
      }
    }
  } catch (Error& error) {
    throw error.at(where);
  }
  auto made = std::make_unique<FrozenModel>(std::move(model), frozen, where);
  if (trainable_count(*made) == 0) {
    throw usage_error("every weight is frozen: there is nothing to train")
        .at(where)
        .mend("leave some out, for instance with a pattern that begins with '!'");
  }
  return made;
}

std::int64_t trainable_count(const Model& model) {
  std::int64_t count = 0;
  for (const Parameter& parameter : model.parameters()) count += parameter.trainable ? parameter.shape.numel() : 0;
  return count;
}

}  // namespace convoy
