"""Models that hear, for torch_train.py: random features and labels, as train_bench makes them."""

FRAME_SECONDS = 0.01  # of a log-mel frame
MERGED_FRAMES = 8  # mel frames of one audio token of GLM-ASR


def hears(config):
    return config.model_type in ("whisper", "glmasr")


def model_class(transformers, config):
    return getattr(transformers, config.architectures[0])


def frames(config):
    """Mel frames of a window."""
    if config.model_type == "whisper":
        return 2 * config.max_source_positions
    return 2 * config.audio_config.max_position_embeddings // MERGED_FRAMES * MERGED_FRAMES


def audio_seconds(config, windows):
    return windows * frames(config) * FRAME_SECONDS


def places(config):
    """Tokens of a row that stand for its window."""
    return frames(config) // MERGED_FRAMES if config.model_type == "glmasr" else 0


def random_batch(config, batch, labels, dtype, torch, generator, device):
    """The arguments of the model's forward pass: one window a row, the labels behind its places in the text."""
    whisper = config.model_type == "whisper"
    bins = config.num_mel_bins if whisper else config.audio_config.num_mel_bins
    vocabulary = config.vocab_size if whisper else config.text_config.vocab_size
    length = frames(config)
    features = 0.5 * torch.randn((batch, bins, length), generator=generator, device=device)
    text = torch.randint(0, vocabulary, (batch, labels), generator=generator, device=device)
    if whisper:
        return {"input_features": features.to(dtype), "labels": text}
    text[text == config.audio_token_id] = 0
    audio = torch.full((batch, places(config)), config.audio_token_id, device=device)
    return {
        "input_features": features.to(dtype),
        "input_features_mask": torch.ones((batch, length), dtype=torch.long, device=device),
        "input_ids": torch.cat([audio, text], 1),
        "attention_mask": torch.ones((batch, audio.shape[1] + labels), dtype=torch.long, device=device),
        "labels": torch.cat([torch.full_like(audio, -100), text], 1),
    }
