// Run files: any text, read as YAML and as JSON, is refused with an Error or gives settings that print to a run file
// with the same settings.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "config/run_config.h"

namespace {

void read(const std::string& text, const std::string& name) {
  std::string printed;
  try {
    convoy::RunConfig config = convoy::parse_run_text(text, name);
    config.sources.clear();
    printed = convoy::print_resolved(config);
  } catch (const convoy::Error& error) {
    if (error.status() != convoy::Status::kUsage) std::abort();
    return;
  }
  convoy::RunConfig again = convoy::parse_run_text(printed, "printed.yaml");  // an Error here is a find
  again.sources.clear();
  if (convoy::print_resolved(again) != printed) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  read(text, "run.yaml");
  read(text, "run.json");
  return 0;
}
