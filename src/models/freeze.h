// Which of a model's weights are trained. A frozen weight has no gradient, no master copy and no optimizer state, and
// the step computes nothing that only its gradient would need.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/model.h"

namespace convoy {

// Freezes the weights (by the names of their files) that `patterns` match (see NamePattern). The patterns apply in
// order: one that begins with "!" trains again what an earlier one froze. `where` names the setting in errors: a
// pattern that matches nothing, a part of a tensor that is one here, nothing left to train.
std::unique_ptr<Model> freeze(std::unique_ptr<Model> model, const std::vector<std::string>& patterns,
                              const std::string& where);

// Sets `trainable` of the parameters from what is said of their tensors in files; throws a usage error where the parts
// of one parameter differ.
void set_trainable(std::vector<Parameter>& parameters, const std::vector<FileTensor>& files,
                   const std::function<bool(const FileTensor&)>& trains, const std::string& where);

// Elements of the weights that are trained.
std::int64_t trainable_count(const Model& model);

}  // namespace convoy
