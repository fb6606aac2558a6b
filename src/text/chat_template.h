// The chat template of a model folder: conversations to token ids as Hugging Face's apply_chat_template does, and which
// tokens are the assistant's.
#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>

#include "text/chat.h"
#include "text/jinja/template.h"

namespace convoy {

class ChatTemplate {
 public:
  // From chat_template.jinja, chat_template.json or tokenizer_config.json (of several the one named "default"), with
  // the tokens that it may name (bos_token, …). None if the folder has none. Throws a usage error for what is no
  // template.
  static std::optional<ChatTemplate> find(const std::filesystem::path& folder);
  // `tokens`: names and texts.
  ChatTemplate(std::string_view source, std::string name, std::vector<std::pair<std::string, std::string>> tokens);

  // `tools` is the JSON of a list, or empty. Throws a data error where the template fails.
  jinja::Rendered render(const std::vector<ChatMessage>& messages, const std::string& tools, bool generation) const;
  // What strftime_now tells. The same for all of a run: tokens are kept from one run to the next.
  void set_time(std::time_t now) { now_ = now; }
  bool has_generation_tags() const { return template_->has_generation_tags(); }
  const std::string& name() const { return template_->name(); }
  // Of the source, the tokens and the time: keys token caches.
  std::uint64_t fingerprint() const;

 private:
  std::shared_ptr<const jinja::Template> template_;
  std::string source_;
  std::vector<std::pair<std::string, std::string>> tokens_;
  std::time_t now_ = 1721952000;  // 26 July 2024, as the Llama-3.1 format has it
};

// Encodes conversations by a template. Trained are the texts that the template's generation tags hold; without such
// tags what an assistant message adds to the rendering of the messages before it with the generation prompt, up to and
// with the special token that ends it. Where the text ends without one, the tokenizer's end token is added. A message
// that spells a special token stays text, unless `parse_special` is on.
class TemplateEncoder {
 public:
  // The tokenizer must outlive the encoder.
  TemplateEncoder(ChatTemplate chat, const Tokenizer& tokenizer, ChatOptions options = {});

  // Throws a data error for: no messages, no assistant message to train on, a template that fails, and one that renders
  // the beginning of a conversation in another way than the whole.
  EncodedSample encode(const std::vector<ChatMessage>& messages, const std::string& tools) const;
  std::vector<TokenId> prompt(const std::vector<ChatMessage>& messages, const std::string& tools) const;

  const ChatTemplate& chat() const { return chat_; }

 private:
  struct Span {
    std::size_t begin, end;
  };
  std::vector<ChatMessage> guarded(const std::vector<ChatMessage>& messages, std::string& mark) const;
  std::vector<Span> spans(const std::vector<ChatMessage>& messages, const std::string& tools,
                          const jinja::Rendered& whole) const;
  Span span_of(const std::vector<ChatMessage>& messages, std::size_t index, const std::string& tools,
               const std::string& whole) const;
  // The first special token of the text from `from` on.
  std::optional<Span> next_special(std::string_view text, std::size_t from) const;
  void append(std::string_view text, const std::string& mark, bool train, EncodedSample& out) const;

  ChatTemplate chat_;
  const Tokenizer& tokenizer_;
  ChatOptions options_;
  std::vector<std::string> special_;  // the texts of the special tokens
};

}  // namespace convoy
