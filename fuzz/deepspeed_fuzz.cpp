// DeepSpeed configurations as strangers write them: any text is read or refused with an error.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "config/run_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    convoy::parse_run_config({"--deepspeed", "{" + text});
  } catch (const convoy::Error& error) {
    if (error.status() != convoy::Status::kUsage) throw;
  }
  return 0;
}
