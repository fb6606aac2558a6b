// A decoder with a head for a task in the place of, or beside, its language-model head: a choice between alternatives
// (Radford et al., 2018; Hugging Face's …DoubleHeadsModel) or a classification of the whole text
// (…ForSequenceClassification).
#pragma once

#include "models/model.h"

namespace convoy {

// `inner` is the decoder. A choice keeps its language-model head, whose loss is the auxiliary one; a classifier has
// none, so `inner` must be tied. `added_tokens`: rows that the embedding has beyond the stored ones.
std::unique_ptr<Model> make_headed_model(std::unique_ptr<Model> inner, TaskHead head, double init_std,
                                         std::int64_t added_tokens);

// Whether a file's tensor belongs to one of these heads.
bool is_task_head_tensor(const std::string& name);

// The class that Hugging Face has for a family with such a head ("GPT2DoubleHeadsModel"); "" where there is none.
std::string headed_architecture(const std::string& family, TaskHead::Kind kind);

}  // namespace convoy
