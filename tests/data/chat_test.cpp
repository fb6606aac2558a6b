#include "text/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "byte_tokenizer.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kGlm{"[gMASK]",       "<sop>",           "<|system|>",   "<|user|>",
                                    "<|assistant|>", "<|observation|>", "<|endoftext|>"};
const std::vector<std::string> kMl{"<|im_start|>", "<|im_end|>", "<think>", "</think>"};
const std::vector<std::string> kLlama{"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};

// The text, with trained stretches in «».
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

std::string encode(ChatFormat format, const std::vector<std::string>& specials,
                   const std::vector<ChatMessage>& messages, const ChatOptions& options = {}) {
  const ByteTokenizer tokenizer(specials);
  return show(ChatEncoder(format, tokenizer, options).encode(messages), tokenizer);
}

std::string prompt(ChatFormat format, const std::vector<std::string>& specials,
                   const std::vector<ChatMessage>& messages) {
  const ByteTokenizer tokenizer(specials);
  return tokenizer.decode(ChatEncoder(format, tokenizer).prompt(messages), false);
}

ChatMessage message(std::string role, std::string content) {
  return {std::move(role), std::move(content), "", true};
}

const std::vector<ChatMessage> kTwoTurns{message("system", "Be brief."), message("user", "Hi"),
                                         message("assistant", "Hello."), message("user", "Bye"),
                                         message("assistant", "Ciao.")};

std::string error_of(ChatFormat format, const std::vector<std::string>& specials,
                     const std::vector<ChatMessage>& messages) {
  try {
    encode(format, specials, messages);
  } catch (const Error& failure) {
    return failure.what();
  }
  return "no error";
}

// models: from the newline after <|assistant|> to the token that follows the content.
TEST(Chat, Glm4TrainsTheNewlineAndTheTokenThatFollows) {
  EXPECT_EQ(encode(ChatFormat::kGlm4, kGlm, kTwoTurns),
            "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi<|assistant|>«\nHello.<|user|>»\nBye<|assistant|>«\nCiao."
            "<|endoftext|>»");
}

TEST(Chat, Glm4EndIsNoTargetAfterAUser) {
  EXPECT_EQ(encode(ChatFormat::kGlm4, kGlm, {message("user", "a"), message("assistant", "b"), message("user", "c")}),
            "[gMASK]<sop><|user|>\na<|assistant|>«\nb<|user|>»\nc<|endoftext|>");
}

TEST(Chat, Glm4MetadataAndObservation) {
  EXPECT_EQ(encode(ChatFormat::kGlm4, kGlm,
                   {message("user", "w?"),
                    {"assistant", "{}", "get_weather", true},
                    message("tool", "sun"),
                    message("assistant", "Sun.")}),
            "[gMASK]<sop><|user|>\nw?<|assistant|>«get_weather\n{}<|observation|>»\nsun<|assistant|>«\nSun."
            "<|endoftext|>»");
}

TEST(Chat, Glm4PromptHasNoNewline) {
  EXPECT_EQ(prompt(ChatFormat::kGlm4, kGlm, {message("user", "Hi")}), "[gMASK]<sop><|user|>\nHi<|assistant|>");
}

TEST(Chat, ChatMlTrainsContentAndEnd) {
  EXPECT_EQ(encode(ChatFormat::kChatMl, kMl, kTwoTurns),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Hello."
            "<|im_end|>»\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n«Ciao.<|im_end|>»\n");
}

TEST(Chat, DefaultSystemMessages) {
  const std::vector<ChatMessage> messages{message("user", "a"), message("assistant", "b")};
  const std::string rest = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«b<|im_end|>»\n";
  EXPECT_EQ(encode(ChatFormat::kChatMl, kMl, messages), rest);
  EXPECT_EQ(
      encode(ChatFormat::kQwen25, kMl, messages),
      "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n" + rest);
  EXPECT_EQ(encode(ChatFormat::kQwen2, kMl, messages),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + rest);
  ChatOptions none;
  none.default_system = "";
  EXPECT_EQ(encode(ChatFormat::kQwen25, kMl, messages, none), rest);
  ChatOptions own;
  own.default_system = "S";
  EXPECT_EQ(encode(ChatFormat::kChatMl, kMl, messages, own), "<|im_start|>system\nS<|im_end|>\n" + rest);
}

TEST(Chat, QwenGivesToolAnswersToTheUser) {
  EXPECT_EQ(
      encode(ChatFormat::kQwen3, kMl,
             {message("user", "a"), message("tool", "1"), message("tool", "2"), message("assistant", "b")}),
      "<|im_start|>user\na<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n"
      "</tool_response><|im_end|>\n<|im_start|>assistant\n«<think>\n\n</think>\n\nb<|im_end|>»\n");
}

TEST(Chat, Qwen3KeepsReasoningOfTheLastTurnsOnly) {
  EXPECT_EQ(encode(ChatFormat::kQwen3, kMl,
                   {message("user", "a"), message("assistant", "<think>\nold\n</think>\n\nb"), message("user", "c"),
                    message("assistant", "<think>\nnew\n</think>\n\nd")}),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«b<|im_end|>»\n<|im_start|>user\nc<|im_end|>\n"
            "<|im_start|>assistant\n«<think>\nnew\n</think>\n\nd<|im_end|>»\n");
}

TEST(Chat, Llama3TrimsAndTrainsContentAndEnd) {
  EXPECT_EQ(encode(ChatFormat::kLlama3, kLlama, {message("user", " a\n"), message("assistant", "\n b ")}),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_id|>assistant"
            "<|end_header_id|>\n\n«b<|eot_id|>»");
  EXPECT_EQ(prompt(ChatFormat::kLlama3, kLlama, {message("user", "a")}),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_id|>assistant"
            "<|end_header_id|>\n\n");
}

TEST(Chat, Llama31AlwaysStatesTheDates) {
  EXPECT_EQ(encode(ChatFormat::kLlama31, kLlama, {message("user", "a"), message("assistant", "b")}),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
            "Today Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n«b<|eot_id|>»");
}

TEST(Chat, TextCannotForgeATurn) {
  const ByteTokenizer tokenizer(kMl);
  const std::vector<ChatMessage> messages{message("user", "<|im_end|>"), message("assistant", "b")};
  const auto ends = [&](const ChatOptions& options) {
    const EncodedSample sample = ChatEncoder(ChatFormat::kChatMl, tokenizer, options).encode(messages);
    return std::count(sample.ids.begin(), sample.ids.end(), *tokenizer.token_to_id("<|im_end|>"));
  };
  EXPECT_EQ(ends({}), 2);
  ChatOptions parse;
  parse.parse_special = true;
  EXPECT_EQ(ends(parse), 3);
}

TEST(Chat, LastTurnOnlyAndWeights) {
  ChatOptions last;
  last.last_turn_only = true;
  const std::string expected =
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
      "<|im_start|>assistant\n«d<|im_end|>»\n";
  std::vector<ChatMessage> messages{message("user", "a"), message("assistant", "b"), message("user", "c"),
                                    message("assistant", "d")};
  EXPECT_EQ(encode(ChatFormat::kChatMl, kMl, messages, last), expected);
  messages[1].trained = false;
  EXPECT_EQ(encode(ChatFormat::kChatMl, kMl, messages), expected);
}

TEST(Chat, Errors) {
  EXPECT_THAT(error_of(ChatFormat::kChatMl, kMl, {}), HasSubstr("a conversation without messages"));
  EXPECT_THAT(
      error_of(ChatFormat::kChatMl, kMl, {message("asistant", "x")}),
      HasSubstr("unknown role 'asistant', did you mean 'assistant'?; chat format chatml knows the roles system, "
                "user, assistant, tool"));
  EXPECT_THAT(error_of(ChatFormat::kGlm4, kGlm, {message("user", "x")}),
              HasSubstr("without an assistant message to train on"));
  EXPECT_THAT(error_of(ChatFormat::kGlm4, kGlm, {message("user", "x"), message("assistant", "")}),
              HasSubstr("without an assistant message to train on"));
  EXPECT_THAT(error_of(ChatFormat::kGlm4, kMl, kTwoTurns),
              HasSubstr("no token '[gMASK]', which chat format glm4 needs"));
  EXPECT_EQ(parse_chat_format("qwen2.5"), ChatFormat::kQwen25);
  EXPECT_EQ(name_of(ChatFormat::kLlama31), "llama3.1");
  try {
    parse_chat_format("chatlm");
    FAIL();
  } catch (const Error& failure) {
    EXPECT_EQ(failure.status(), Status::kUsage);
    EXPECT_THAT(failure.what(), HasSubstr("did you mean 'chatml'?"));
  }
}

}  // namespace
}  // namespace convoy
