// Rows of Parquet files, through Apache Arrow where Convoy is built with it (CONVOY_PARQUET).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"

namespace convoy {

// Whether this build reads them.
bool reads_parquet();

class ParquetRows {
 public:
  virtual ~ParquetRows() = default;
  // Names of the file's columns (a struct is one).
  virtual const std::vector<std::string>& columns() const = 0;
  virtual std::int64_t rows() const = 0;
  // Only these are read from here on; before the first row. Default: all.
  virtual void select(const std::vector<std::string>& columns) = 0;
  // The next row as an object: lists, structs and maps as JSON has them, a missing value as null, bytes that are no
  // text as JSON binary. False at the end. Throws a storage error for a damaged file.
  virtual bool next(Json& row) = 0;
};

// Throws a storage error where the file cannot be read or is no Parquet file, and a usage error in a build without
// Arrow.
std::unique_ptr<ParquetRows> open_parquet(const std::filesystem::path& file);

}  // namespace convoy
