// Chat formats: a list of messages to token ids, with the tokens that a supervised run trains on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace convoy {

enum class ChatFormat : std::uint8_t {
  kGlm4,     // [gMASK]<sop><|role|>{metadata}\n{content}…<|endoftext|>
  kChatMl,   // <|im_start|>role\n{content}<|im_end|>\n, nothing inserted
  kQwen2,    // ChatML with Qwen2's default system message
  kQwen25,   // ChatML with Qwen2.5's default system message
  kQwen3,    // ChatML; reasoning kept only in the turns after the last user message
  kLlama3,   // <|begin_of_text|><|start_header_id|>role<|end_header_id|>\n\n{trimmed content}<|eot_id|>
  kLlama31,  // as kLlama3, with a system message that always states the dates
};

// "glm4", "chatml", "qwen2", "qwen2.5", "qwen3", "llama3", "llama3.1". The parser throws a usage error that names the
// nearest format.
std::string_view name_of(ChatFormat format);
ChatFormat parse_chat_format(std::string_view name);

struct ChatMessage {
  std::string role;
  std::string content;
  std::string metadata;  // GLM-4: what stands after the role, such as the name of a called tool
  bool trained = true;   // false: an assistant message that is context only
  // The message's other fields (tool_calls, reasoning_content, name, …) as a JSON object; only templates show them.
  std::string more{};
  friend bool operator==(const ChatMessage&, const ChatMessage&) = default;
};

struct ChatOptions {
  // Whether message text that spells a special token becomes that token. Off, so that no message can forge a turn.
  bool parse_special = false;
  // Trains on the last assistant message only.
  bool last_turn_only = false;
  // The system message to insert where the first message is none; unset: that of the format. Empty: none.
  std::optional<std::string> default_system;
  // kLlama31's "Today Date" (3.2 puts the day of use there).
  std::string today = "26 Jul 2024";
};

// Token ids and, for each, whether it is a training target (predicted from the token before it).
struct EncodedSample {
  std::vector<TokenId> ids;
  std::vector<std::uint8_t> trained;
  // Of a task's sample: the right class or alternative, and where the second and later alternatives begin.
  std::int32_t label = -1;
  std::vector<std::uint32_t> parts;

  void append(TokenId id, bool train);
  void append(const std::vector<TokenId>& more, bool train);
};

// Encodes conversations. Trained are: the content of every assistant message and the token that ends it (GLM-4: from
// the newline after <|assistant|> to the token that follows the content, whichever it is). The header and the content
// of an assistant message are encoded apart, so that training sees the very tokens that generation starts from.
class ChatEncoder {
 public:
  // Throws a usage error when the tokenizer lacks one of the format's tokens.
  ChatEncoder(ChatFormat format, const Tokenizer& tokenizer, ChatOptions options = {});

  // Throws a data error for: no messages, an unknown role, no assistant message to train on.
  EncodedSample encode(const std::vector<ChatMessage>& messages) const;
  // The ids from which the model continues as the assistant.
  std::vector<TokenId> prompt(const std::vector<ChatMessage>& messages) const;

  ChatFormat format() const { return format_; }
  const ChatOptions& options() const { return options_; }

 private:
  struct Turn {
    std::string role;
    std::string metadata{};
    std::string content{};
    std::string reasoning{};
    std::vector<std::string> answers{};
    bool thinks = false;
    bool trained = false;
  };
  TokenId token(std::string_view name) const;
  std::vector<TokenId> text(std::string_view text) const;
  void marker(std::string_view name, bool train, EncodedSample& out) const;
  std::vector<Turn> turns(const std::vector<ChatMessage>& messages, bool for_training) const;
  std::string canonical_role(const std::string& role) const;
  std::vector<Turn> with_system(std::vector<Turn> turns) const;
  void think(std::vector<Turn>& turns) const;
  void glm_turn(const Turn& turn, bool& trained_before, EncodedSample& out) const;
  void chatml_turn(const Turn& turn, EncodedSample& out) const;
  void llama_turn(const Turn& turn, EncodedSample& out) const;
  EncodedSample render(const std::vector<Turn>& turns, bool generation) const;

  ChatFormat format_;
  const Tokenizer& tokenizer_;
  ChatOptions options_;
};

}  // namespace convoy
