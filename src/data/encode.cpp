#include "data/encode.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace convoy {

namespace {

std::string task_key(const TaskEncoding& task) {
  if (task.kind == TaskEncoding::Kind::kNone) return "";
  std::string key = fmt::format(" task={} length={} alternatives={} tokens={},{},{}", static_cast<int>(task.kind),
                                task.sequence, task.alternatives, task.start, task.delimiter, task.classify);
  for (const std::string& name : task.classes) key += fmt::format(" {}:{}", name.size(), name);
  return key;
}

}  // namespace

std::string EncodeSettings::key() const {
  const auto quoted = [](const std::string& text) { return fmt::format("{}:{}", text.size(), text); };
  const std::string shown = chat_template ? fmt::format("template={:016x} ", chat_template->fingerprint()) : "";
  return shown +
         fmt::format("chat={} parse={} last={} system={} today={} special={} eos={} parse_text={}",
                     chat_format ? name_of(*chat_format) : "none", chat.parse_special, chat.last_turn_only,
                     chat.default_system ? quoted(*chat.default_system) : "default", quoted(chat.today),
                     add_special_tokens, append_eos, parse_special) +
         (all_targets ? " all_targets" : "") + task_key(task);
}

SampleEncoder::SampleEncoder(const Tokenizer& tokenizer, EncodeSettings settings)
    : tokenizer_(tokenizer), settings_(std::move(settings)), eos_(tokenizer.eos_id()) {
  if (settings_.chat_template) {
    template_.emplace(*settings_.chat_template, tokenizer_, settings_.chat);
  } else if (settings_.chat_format)
    chat_.emplace(*settings_.chat_format, tokenizer_, settings_.chat);
}

std::vector<TokenId> SampleEncoder::text(std::string_view text, bool add_special) const {
  return tokenizer_.encode(text, {.add_special_tokens = add_special, .parse_special = settings_.parse_special});
}

// Some tokenizers end every text themselves; it is said once, and only where the sample ends.
void SampleEncoder::drop_end(std::vector<TokenId>& ids) const {
  if (settings_.add_special_tokens && eos_ && !ids.empty() && ids.back() == *eos_) ids.pop_back();
}

EncodedSample SampleEncoder::encode_text(const Sample& sample) const {
  EncodedSample encoded;
  std::vector<TokenId> ids = text(sample.text, settings_.add_special_tokens);
  if (settings_.append_eos) drop_end(ids);
  encoded.append(ids, true);
  return encoded;
}

EncodedSample SampleEncoder::encode_prompt(const Sample& sample) const {
  EncodedSample encoded;
  std::vector<TokenId> ids = text(sample.prompt, settings_.add_special_tokens);
  drop_end(ids);
  encoded.append(ids, false);
  encoded.append(text(sample.completion, false), true);
  return encoded;
}

EncodedSample SampleEncoder::encode(const Sample& sample) const {
  EncodedSample encoded = encode_kind(sample);
  if (settings_.all_targets) encoded.trained.assign(encoded.ids.size(), 1);
  return encoded;
}

EncodedSample SampleEncoder::encode_kind(const Sample& sample) const {
  if (sample.kind == Sample::Kind::kChoice) return encode_choice(sample);
  if (sample.kind == Sample::Kind::kLabelled) return encode_labelled(sample);
  if (sample.kind == Sample::Kind::kMessages && template_) return template_->encode(sample.messages, sample.tools);
  if (sample.kind == Sample::Kind::kMessages && chat_) {
    if (!sample.tools.empty()) {
      throw data_error(fmt::format("chat format {} does not show the conversation's tools", name_of(chat_->format())))
          .mend(
              "take a model folder with a chat template (chat_format: template), or write the tools into the content "
              "of "
              "the system message");
    }
    return chat_->encode(sample.messages);
  }
  if (sample.kind == Sample::Kind::kMessages && !sample.instruction) {
    throw usage_error("the data holds conversations, but no chat format is set")
        .at(sample.where)
        .mend(
            "set the chat format that the model was trained with, or add its chat_template.jinja to the folder: glm4, "
            "chatml, qwen2, qwen2.5, qwen3, llama3 or "
            "llama3.1");
  }
  EncodedSample encoded = sample.kind == Sample::Kind::kText ? encode_text(sample) : encode_prompt(sample);
  if (settings_.append_eos) {
    if (!eos_) {
      throw usage_error("the tokenizer names no end-of-sequence token")
          .mend("give it one (eos_token in tokenizer_config.json), or turn append_eos off");
    }
    encoded.append(*eos_, true);
  }
  return encoded;
}

std::int64_t count_targets(const EncodedSample& sample) {
  if (sample.trained.empty()) return 0;
  const std::int64_t tokens = std::count(sample.trained.begin() + 1, sample.trained.end(), std::uint8_t{1});
  return sample.label >= 0 ? std::max<std::int64_t>(tokens, 1) : tokens;
}

}  // namespace convoy
