// Whisper (Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", 2022).
#pragma once

#include "models/config_reader.h"
#include "models/model.h"

namespace convoy {

struct WhisperConfig {
  std::int64_t vocab = 0, hidden = 0, mel_bins = 0;
  std::int64_t encoder_layers = 0, encoder_heads = 0, encoder_intermediate = 0, source_positions = 0;
  std::int64_t decoder_layers = 0, decoder_heads = 0, decoder_intermediate = 0, target_positions = 0;
  std::int64_t pad_row = -1;
  bool scale_embedding = false;
  bool tied = true;
  double init_std = 0.02;
  bool freeze_encoder = false;
  bool mask_audio_padding = false;  // AudioInput::masks_padding
};

WhisperConfig read_whisper_config(const ConfigReader& config, const ModelOptions& options);
std::unique_ptr<Model> make_whisper(WhisperConfig config);

}  // namespace convoy
