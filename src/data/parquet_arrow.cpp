// The library that reads Parquet files, with Apache Arrow; see parquet.cpp.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/parquet.h"

namespace convoy {
namespace {

constexpr std::int64_t kRowsAtOnce = 256;

Json text_or_bytes(std::string_view bytes, bool text) {
  if (text) return std::string(bytes);
  return Json::binary({bytes.begin(), bytes.end()});
}

Json value_at(const arrow::Array& array, std::int64_t row);

template <typename Array>
Json list_at(const arrow::Array& array, std::int64_t row) {
  const auto& list = static_cast<const Array&>(array);
  Json items = Json::array();
  for (std::int64_t i = list.value_offset(row); i < list.value_offset(row) + list.value_length(row); ++i)
    items.push_back(value_at(*list.values(), i));
  return items;
}

Json struct_at(const arrow::Array& array, std::int64_t row) {
  const auto& record = static_cast<const arrow::StructArray&>(array);
  Json object = Json::object();
  for (int f = 0; f < record.num_fields(); ++f)
    object[record.type()->field(f)->name()] = value_at(*record.field(f), row);
  return object;
}

// Keys become names.
Json map_at(const arrow::Array& array, std::int64_t row) {
  const auto& map = static_cast<const arrow::MapArray&>(array);
  Json object = Json::object();
  for (std::int64_t i = map.value_offset(row); i < map.value_offset(row) + map.value_length(row); ++i) {
    const Json key = value_at(*map.keys(), i);
    object[key.is_string() ? key.get<std::string>() : key.dump()] = value_at(*map.items(), i);
  }
  return object;
}

template <typename Array>
Json number_at(const arrow::Array& array, std::int64_t row) {
  return static_cast<const Array&>(array).Value(row);
}

template <typename Array>
Json real_at(const arrow::Array& array, std::int64_t row) {
  const auto value = static_cast<double>(static_cast<const Array&>(array).Value(row));
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

// Dates, times, decimals and whatever else: as Arrow writes them.
Json shown_at(const arrow::Array& array, std::int64_t row) {
  const auto scalar = array.GetScalar(row);
  return scalar.ok() ? Json((*scalar)->ToString()) : Json(nullptr);
}

Json value_at(const arrow::Array& array, std::int64_t row) {
  if (array.IsNull(row)) return nullptr;
  switch (array.type_id()) {
    case arrow::Type::STRING:
      return text_or_bytes(static_cast<const arrow::StringArray&>(array).GetView(row), true);
    case arrow::Type::LARGE_STRING:
      return text_or_bytes(static_cast<const arrow::LargeStringArray&>(array).GetView(row), true);
    case arrow::Type::BINARY:
      return text_or_bytes(static_cast<const arrow::BinaryArray&>(array).GetView(row), false);
    case arrow::Type::LARGE_BINARY:
      return text_or_bytes(static_cast<const arrow::LargeBinaryArray&>(array).GetView(row), false);
    case arrow::Type::FIXED_SIZE_BINARY:
      return text_or_bytes(static_cast<const arrow::FixedSizeBinaryArray&>(array).GetView(row), false);
    case arrow::Type::BOOL:
      return static_cast<const arrow::BooleanArray&>(array).Value(row);
    case arrow::Type::INT8:
      return number_at<arrow::Int8Array>(array, row);
    case arrow::Type::INT16:
      return number_at<arrow::Int16Array>(array, row);
    case arrow::Type::INT32:
      return number_at<arrow::Int32Array>(array, row);
    case arrow::Type::INT64:
      return number_at<arrow::Int64Array>(array, row);
    case arrow::Type::UINT8:
      return number_at<arrow::UInt8Array>(array, row);
    case arrow::Type::UINT16:
      return number_at<arrow::UInt16Array>(array, row);
    case arrow::Type::UINT32:
      return number_at<arrow::UInt32Array>(array, row);
    case arrow::Type::UINT64:
      return number_at<arrow::UInt64Array>(array, row);
    case arrow::Type::FLOAT:
      return real_at<arrow::FloatArray>(array, row);
    case arrow::Type::DOUBLE:
      return real_at<arrow::DoubleArray>(array, row);
    case arrow::Type::LIST:
      return list_at<arrow::ListArray>(array, row);
    case arrow::Type::LARGE_LIST:
      return list_at<arrow::LargeListArray>(array, row);
    case arrow::Type::FIXED_SIZE_LIST:
      return list_at<arrow::FixedSizeListArray>(array, row);
    case arrow::Type::STRUCT:
      return struct_at(array, row);
    case arrow::Type::MAP:
      return map_at(array, row);
    case arrow::Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return value_at(*coded.dictionary(), coded.GetValueIndex(row));
    }
    case arrow::Type::EXTENSION:
      return value_at(*static_cast<const arrow::ExtensionArray&>(array).storage(), row);
    default:
      return shown_at(array, row);
  }
}

class ArrowRows final : public ParquetRows {
 public:
  explicit ArrowRows(const std::filesystem::path& file) : name_(file.string()) {
    guarded([&] {
      auto input = arrow::io::ReadableFile::Open(name_);
      require(input.status());
      parquet::arrow::FileReaderBuilder builder;
      require(builder.Open(*input));
      parquet::ArrowReaderProperties properties(/*use_threads=*/false);
      properties.set_batch_size(kRowsAtOnce);
      builder.properties(properties);
      require(builder.Build(&reader_));
      const auto* schema = reader_->parquet_reader()->metadata()->schema();
      for (int i = 0; i < schema->group_node()->field_count(); ++i)
        columns_.push_back(schema->group_node()->field(i)->name());
      for (int leaf = 0; leaf < schema->num_columns(); ++leaf) leaves_.push_back(leaf);
    });
  }

  const std::vector<std::string>& columns() const override { return columns_; }
  std::int64_t rows() const override { return reader_->parquet_reader()->metadata()->num_rows(); }

  void select(const std::vector<std::string>& columns) override {
    leaves_.clear();
    const auto* schema = reader_->parquet_reader()->metadata()->schema();
    for (int leaf = 0; leaf < schema->num_columns(); ++leaf) {
      const std::string& top = schema->GetColumnRoot(leaf)->name();
      if (std::find(columns.begin(), columns.end(), top) != columns.end()) leaves_.push_back(leaf);
    }
  }

  bool next(Json& row) override {
    bool found = false;
    guarded([&] {
      if (!batches_) {
        std::vector<int> groups(static_cast<std::size_t>(reader_->num_row_groups()));
        for (std::size_t g = 0; g < groups.size(); ++g) groups[g] = static_cast<int>(g);
        auto batches = reader_->GetRecordBatchReader(groups, leaves_);
        require(batches.status());
        batches_ = std::move(*batches);
      }
      while (!batch_ || at_ == batch_->num_rows()) {
        require(batches_->ReadNext(&batch_));
        at_ = 0;
        if (!batch_) return;
        require(batch_->ValidateFull());  // a damaged file must not lead outside of its arrays
      }
      row = Json::object();
      for (int c = 0; c < batch_->num_columns(); ++c)
        row[batch_->schema()->field(c)->name()] = value_at(*batch_->column(c), at_);
      ++at_;
      found = true;
    });
    return found;
  }

 private:
  Error damaged(const std::string& reason) const {
    return storage_error(fmt::format("not a Parquet file, or a damaged one: {}", reason)).at(name_);
  }
  void require(const arrow::Status& status) const {
    if (!status.ok()) throw damaged(status.message());
  }
  // Arrow's errors as Convoy's.
  template <typename Body>
  void guarded(const Body& body) const {
    try {
      body();
    } catch (const parquet::ParquetException& failure) {
      throw damaged(failure.what());
    }
  }

  std::string name_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::vector<std::string> columns_;
  std::vector<int> leaves_;
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::int64_t at_ = 0;
};

}  // namespace

}  // namespace convoy

// What parquet.cpp looks for.
extern "C" __attribute__((visibility("default"))) convoy::ParquetRows* convoy_open_parquet(const char* file);
convoy::ParquetRows* convoy_open_parquet(const char* file) {
  return new convoy::ArrowRows(file);
}
