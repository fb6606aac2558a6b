// Conversations by a template: the tokens, and which of them are the assistant's.
#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "byte_tokenizer.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using Messages = std::vector<ChatMessage>;

const std::vector<std::string> kMl{"<|im_start|>", "<|im_end|>", "<eos>"};

std::string show(const EncodedSample& sample, const Tokenizer& tokenizer) {
  std::string text;
  bool inside = false;
  for (std::size_t i = 0; i < sample.ids.size(); ++i) {
    const bool trained = sample.trained[i] != 0;
    if (trained != inside) text += trained ? "«" : "»";
    inside = trained;
    text += tokenizer.token_bytes(sample.ids[i]);
  }
  return text + (inside ? "»" : "");
}

ChatTemplate from_file(const std::string& name) {
  return ChatTemplate(read_file(std::string(CONVOY_TEMPLATES) + "/" + name + ".jinja"), name, {{"bos_token", "<s>"}});
}

std::string encode(const ChatTemplate& chat, const std::vector<std::string>& specials, const Messages& messages,
                   const ChatOptions& options = {}, const std::string& tools = "") {
  const ByteTokenizer tokenizer(specials);
  return show(TemplateEncoder(chat, tokenizer, options).encode(messages, tools), tokenizer);
}

const Messages kTwoTurns{{"user", "Hi", "", true},
                         {"assistant", "Hello.", "", true},
                         {"user", "Bye", "", true},
                         {"assistant", "Ciao.", "", true}};

TEST(ChatTemplate, TrainsOnWhatAssistantMessagesAdd) {
  EXPECT_EQ(encode(from_file("qwen2.5_style"), kMl, kTwoTurns),
            "<|im_start|>system\nYou answer questions.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n«Hello.<|im_end|>»\n<|im_start|>user\nBye<|im_end|>\n"
            "<|im_start|>assistant\n«Ciao.<|im_end|>»\n");
  Messages context = kTwoTurns;
  context[1].trained = false;
  const std::string last =
      "<|im_start|>system\nYou answer questions.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
      "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
      "<|im_start|>assistant\n«Ciao.<|im_end|>»\n";
  EXPECT_EQ(encode(from_file("qwen2.5_style"), kMl, context), last);
  ChatOptions options;
  options.last_turn_only = true;
  EXPECT_EQ(encode(from_file("qwen2.5_style"), kMl, kTwoTurns, options), last);
}

// The reasoning of an earlier turn is not shown, that of the last is; both are told.
TEST(ChatTemplate, FindsTurnsThatAreShownShorterLater) {
  Messages messages = kTwoTurns;
  messages[1].content = "<think>\nhm\n</think>\n\nHello.";
  messages[3].content = "<think>\nso\n</think>\n\nCiao.";
  EXPECT_EQ(encode(from_file("qwen3_style"), kMl, messages),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Hello.<|im_end|>»\n"
            "<|im_start|>user\nBye<|im_end|>\n"
            "<|im_start|>assistant\n«<think>\nso\n</think>\n\nCiao.<|im_end|>»\n");
}

TEST(ChatTemplate, EndsOfTurns) {
  const std::vector<std::string> glm{"[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<eos>"};
  EXPECT_EQ(encode(from_file("glm4_style"), glm, kTwoTurns),
            "[gMASK]<sop><|user|>\nHi<|assistant|>«\nHello.<|user|>»\nBye<|assistant|>«\nCiao.<eos>»");
  const std::vector<std::string> llama{"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>"};
  EXPECT_THAT(encode(from_file("llama3_style"), llama, kTwoTurns),
              HasSubstr("assistant<|end_header_id|>\n\n«Hello.<|eot_id|>»<|start_header_id|>user"));
}

TEST(ChatTemplate, GenerationTagsSayWhatIsTrained) {
  EXPECT_EQ(encode(from_file("generation_style"), kMl, kTwoTurns),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Hello.<|im_end|>»\n"
            "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n«Ciao.<|im_end|>»\n");
}

TEST(ChatTemplate, ShowsToolsCallsAndAnswers) {
  const Messages messages{
      {"user", "Rain?", "", true},
      {"assistant", "", "", true, R"({"tool_calls": [{"function": {"name": "w", "arguments": {"a": 1}}}]})"},
      {"tool", "no", "", true},
      {"assistant", "No.", "", true}};
  const std::string text = encode(from_file("qwen2.5_style"), kMl, messages, {}, R"([{"name": "w"}])");
  EXPECT_THAT(text, HasSubstr("<tools>\n{\"name\": \"w\"}\n</tools>"));
  EXPECT_THAT(text, HasSubstr("<|im_start|>assistant\n«<tool_call>\n{\"name\": \"w\", \"arguments\": {\"a\": 1}}\n"
                              "</tool_call><|im_end|>»\n<|im_start|>user\n<tool_response>\nno\n</tool_response>"));
}

// No message can forge a turn: its text is not the token.
TEST(ChatTemplate, SpelledTokensStayText) {
  const ByteTokenizer tokenizer(kMl);
  const Messages messages{{"user", "a<|im_end|>b<|im_start|>", "", true}, {"assistant", "c<|im_end|>d", "", true}};
  const EncodedSample sample = TemplateEncoder(from_file("qwen2.5_style"), tokenizer).encode(messages, "");
  EXPECT_EQ(std::count(sample.ids.begin(), sample.ids.end(), 256), 3);
  EXPECT_EQ(std::count(sample.ids.begin(), sample.ids.end(), 257), 3);
  EXPECT_THAT(show(sample, tokenizer), HasSubstr("assistant\n«c<|im_end|>d<|im_end|>»"));
}

TEST(ChatTemplate, PromptEndsWhereTheAssistantBegins) {
  const ByteTokenizer tokenizer(kMl);
  const TemplateEncoder encoder(from_file("qwen3_style"), tokenizer);
  EXPECT_EQ(tokenizer.decode(encoder.prompt({{"user", "Hi", "", true}}, ""), false),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, RefusesWhatItCannotTell) {
  const auto error = [](const std::string& source, const Messages& messages) -> std::string {
    try {
      encode(ChatTemplate(source, "t.jinja", {}), kMl, messages);
    } catch (const Error& failure) {
      return failure.what();
    }
    return "no error";
  };
  const std::string plain = "{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}";
  EXPECT_EQ(error(plain, kTwoTurns), "no error");
  EXPECT_THAT(error("{{ messages|length }}" + plain, kTwoTurns), HasSubstr("the assistant's part cannot be told"));
  EXPECT_THAT(error(plain, {}), HasSubstr("without messages"));
  EXPECT_THAT(error(plain, {{"user", "q", "", true}}), HasSubstr("without an assistant message"));
  EXPECT_THAT(error("\n{{ raise_exception('no tools') }}", kTwoTurns), HasSubstr("no tools"));
}

}  // namespace
}  // namespace convoy
