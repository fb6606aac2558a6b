// Loads Arrow's side when the first Parquet file is read. It is a library of its own, because Arrow's libraries bring
// copies of others (OpenSSL, in some versions simdjson) whose symbols would take the place of those that Convoy uses.
#include "data/parquet.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"

namespace convoy {
namespace {

using Open = ParquetRows* (*)(const char* file);

Open load() {
  namespace fs = std::filesystem;
  std::error_code unknown;
  const fs::path program = fs::read_symlink("/proc/self/exe", unknown).parent_path();
  const char* name = "libconvoy_parquet.so";
  std::string failures;
  for (const fs::path& place :
       {program / name, program.parent_path() / "lib" / name, fs::path(CONVOY_PARQUET_PLUGIN)}) {
    if (!fs::exists(place, unknown)) continue;
    void* library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    void* function = library == nullptr ? nullptr : ::dlsym(library, "convoy_open_parquet");
    if (function != nullptr) return reinterpret_cast<Open>(function);
    failures += fmt::format("{}{}", failures.empty() ? "" : "; ", ::dlerror());
  }
  throw usage_error(fmt::format("what reads Parquet files cannot be loaded: {}",
                                failures.empty() ? fmt::format("there is no {} beside the program", name) : failures))
      .mend(
          "keep libconvoy_parquet.so beside the program, and Apache Arrow's libraries where they were when it was "
          "built");
}

}  // namespace

bool reads_parquet() {
  return true;
}

std::unique_ptr<ParquetRows> open_parquet(const std::filesystem::path& file) {
  static const Open open = load();
  return std::unique_ptr<ParquetRows>(open(file.c_str()));
}

}  // namespace convoy
