#include "base/error.h"
#include "data/parquet.h"

namespace convoy {

bool reads_parquet() {
  return false;
}

std::unique_ptr<ParquetRows> open_parquet(const std::filesystem::path& file) {
  throw usage_error("this build of Convoy reads no Parquet files")
      .at(file.string())
      .mend(
          "build with Apache Arrow (tools/setup.sh --parquet, then cmake -DCONVOY_PARQUET=ON), or write the rows as "
          "JSON lines, with the Python library of Hugging Face: Dataset.from_parquet(FILE).to_json(FILE)");
}

}  // namespace convoy
