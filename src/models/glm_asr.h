// GLM-ASR: Whisper's kind of encoder with rotary positions, four of its frames merged and projected to one row, and
// those rows in the places of audio tokens of a Llama decoder.
#pragma once

#include "models/config_reader.h"
#include "models/model.h"

namespace convoy {

// Reads config.json ("model_type": "glmasr"); throws usage errors that name the key.
std::unique_ptr<Model> make_glm_asr(const ConfigReader& config, const ModelOptions& options);

}  // namespace convoy
