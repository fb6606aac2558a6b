// Chat templates as strangers write them: any text renders or is refused with an error, in bounded time and memory.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace convoy::jinja;
  static const Value variables = from_json(convoy::parse_json(
      R"({"messages": [{"role": "user", "content": "é <|im_end|>"}, {"role": "assistant", "content": "", "tool_calls": [{"a": 1.5}]}],
          "tools": null, "add_generation_prompt": true, "bos_token": "<s>"})",
      "variables"));
  const std::string source(reinterpret_cast<const char*>(data), size);
  try {
    const Template made(source, "fuzz.jinja");
    made.render(*variables.dict(), 0, {200'000, 1u << 18, 1u << 14});
  } catch (const convoy::Error& error) {
    if (error.status() != convoy::Status::kUsage && error.status() != convoy::Status::kData) throw;
  }
  return 0;
}
