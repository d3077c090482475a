#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <arrow/api.h>
#include <arrow/io/api.h>
#include <arrow/ipc/api.h>
#include <dlfcn.h>

#include "base/error.h"
#include "base/escape.h"
#include "base/files/mapped_file.h"
#include "base/files/shared_files.h"
#include "trainer/files/data/records/record_file.h"

namespace trellis::trainer {
namespace {

using nlohmann::ordered_json;
using Arrays = std::vector<std::shared_ptr<arrow::Array>>;

ordered_json value_at(const arrow::Array& array, std::int64_t row);

template <typename List>
ordered_json list_at(const arrow::Array& array, std::int64_t row) {
  const auto& list = static_cast<const List&>(array);
  ordered_json values = ordered_json::array();
  for (std::int64_t i = 0; i < list.value_length(row); ++i)
    values.push_back(value_at(*list.values(), list.value_offset(row) + i));
  return values;
}

ordered_json struct_at(const arrow::Array& array, std::int64_t row) {
  const auto& fields = static_cast<const arrow::StructArray&>(array);
  ordered_json values = ordered_json::object();
  for (int i = 0; i < fields.num_fields(); ++i)
    values[fields.type()->field(i)->name()] = value_at(*fields.field(i), row);
  return values;
}

template <typename Array>
auto number_at(const arrow::Array& array, std::int64_t row) {
  return static_cast<const Array&>(array).Value(row);
}

constexpr const char* kJsonText = "arrow.json";  ///< the extension type whose storage is JSON

/// Why JSON does not have the type; "" when it does.
std::string why_no_json(const arrow::DataType& type) {
  using T = arrow::Type;
  switch (type.id()) {
    case T::NA:
    case T::BOOL:
    case T::INT8:
    case T::INT16:
    case T::INT32:
    case T::INT64:
    case T::UINT8:
    case T::UINT16:
    case T::UINT32:
    case T::UINT64:
    case T::FLOAT:
    case T::DOUBLE:
    case T::STRING:
    case T::LARGE_STRING:
    case T::STRING_VIEW: return "";
    case T::LIST:
    case T::LARGE_LIST:
    case T::FIXED_SIZE_LIST:
    case T::STRUCT:
      for (const auto& field : type.fields())
        if (const std::string why = why_no_json(*field->type()); !why.empty()) return why;
      return "";
    case T::DICTIONARY:
      return why_no_json(*static_cast<const arrow::DictionaryType&>(type).value_type());
    case T::EXTENSION:
      return why_no_json(*static_cast<const arrow::ExtensionType&>(type).storage_type());
    default: return "a column of type " + type.ToString() + " is no text, number, list or struct";
  }
}

/// The value in the storage. For arrow.json, which datasets 5 writes for objects of several kinds,
/// it is the parsed document.
ordered_json extension_at(const arrow::Array& array, std::int64_t row) {
  const auto& extension = static_cast<const arrow::ExtensionArray&>(array);
  ordered_json stored = value_at(*extension.storage(), row);
  const auto& type = static_cast<const arrow::ExtensionType&>(*array.type());
  if (type.extension_name() != kJsonText || !stored.is_string()) return stored;
  ordered_json value = ordered_json::parse(stored.get<std::string>(), nullptr, false);
  if (value.is_discarded())
    throw ConfigError("expected JSON, as its type " + std::string(kJsonText) + " says, got " +
                      terminal_line(stored.get<std::string>().substr(0, 60)));
  return value;
}

/// Throws ConfigError for a type that JSON does not have.
ordered_json value_at(const arrow::Array& array, std::int64_t row) {
  if (array.IsNull(row)) return nullptr;
  using T = arrow::Type;
  switch (array.type_id()) {
    case T::NA: return nullptr;
    case T::BOOL: return number_at<arrow::BooleanArray>(array, row);
    case T::INT8: return number_at<arrow::Int8Array>(array, row);
    case T::INT16: return number_at<arrow::Int16Array>(array, row);
    case T::INT32: return number_at<arrow::Int32Array>(array, row);
    case T::INT64: return number_at<arrow::Int64Array>(array, row);
    case T::UINT8: return number_at<arrow::UInt8Array>(array, row);
    case T::UINT16: return number_at<arrow::UInt16Array>(array, row);
    case T::UINT32: return number_at<arrow::UInt32Array>(array, row);
    case T::UINT64: return number_at<arrow::UInt64Array>(array, row);
    case T::FLOAT: return number_at<arrow::FloatArray>(array, row);
    case T::DOUBLE: return number_at<arrow::DoubleArray>(array, row);
    case T::STRING: return static_cast<const arrow::StringArray&>(array).GetString(row);
    case T::LARGE_STRING: return static_cast<const arrow::LargeStringArray&>(array).GetString(row);
    case T::STRING_VIEW: return static_cast<const arrow::StringViewArray&>(array).GetString(row);
    case T::LIST: return list_at<arrow::ListArray>(array, row);
    case T::LARGE_LIST: return list_at<arrow::LargeListArray>(array, row);
    case T::FIXED_SIZE_LIST: return list_at<arrow::FixedSizeListArray>(array, row);
    case T::STRUCT: return struct_at(array, row);
    case T::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return value_at(*coded.dictionary(), coded.GetValueIndex(row));
    }
    case T::EXTENSION: return extension_at(array, row);
    default: throw ConfigError(why_no_json(*array.type()));
  }
}

class ArrowRecords : public RecordFile {
 public:
  ArrowRecords(std::string path, std::vector<std::shared_ptr<arrow::RecordBatch>> batches)
      : path_(std::move(path)), batches_(std::move(batches)) {
    for (const auto& batch : batches_) {
      if (const arrow::Status status = batch->ValidateFull(); !status.ok())
        throw ConfigError(path_ + ": the batch of record " + std::to_string(total_ + 1) + ": " +
                          status.message());
      firsts_.push_back(total_);
      total_ += batch->num_rows();
    }
    if (batches_.empty()) return;
    for (const auto& field : batches_[0]->schema()->fields())
      if (std::string why = why_no_json(*field->type()); !why.empty())
        absent_.emplace(field->name(), std::move(why));
  }
  std::string why_absent(const std::string& column) const override {
    const auto found = absent_.find(column);
    return found == absent_.end() ? "" : found->second;
  }
  std::int64_t num_records() const override { return total_; }
  ordered_json record(std::int64_t index) const override {
    const auto place =
        static_cast<std::size_t>(std::ranges::upper_bound(firsts_, index) - firsts_.begin()) - 1;
    const arrow::RecordBatch& batch = *batches_[place];
    ordered_json values = ordered_json::object();
    for (int i = 0; i < batch.num_columns(); ++i) {
      if (absent_.contains(batch.column_name(i))) continue;  // an error for who asks for it
      try {
        values[batch.column_name(i)] = value_at(*batch.column(i), index - firsts_[place]);
      } catch (const ConfigError& error) {
        throw ConfigError(where(index) + ": column " + batch.column_name(i) + ": " + error.what());
      }
    }
    return values;
  }
  std::string where(std::int64_t index) const override {
    return path_ + ": record " + std::to_string(index + 1);
  }

 private:
  std::string path_;
  std::vector<std::shared_ptr<arrow::RecordBatch>> batches_;
  std::vector<std::int64_t> firsts_;
  std::map<std::string, std::string> absent_;  ///< columns that records do not have, and why
  std::int64_t total_ = 0;
};

template <typename T>
T value_of(arrow::Result<T> result, const std::string& path) {
  if (!result.ok())
    throw ConfigError(path + ": " + result.status().message() + "; copy or write the file again");
  return std::move(result).ValueUnsafe();
}

bool has_magic(const std::string& path) {
  const MappedFile file(path);
  return file.text().starts_with("ARROW1");
}

}  // namespace

std::unique_ptr<const RecordFile> open_arrow_records(const std::string& path) {
  const bool random_access = has_magic(path);
  const auto file =
      value_of(arrow::io::MemoryMappedFile::Open(path, arrow::io::FileMode::READ), path);
  auto options = arrow::ipc::IpcReadOptions::Defaults();
  options.use_threads = false;
  std::vector<std::shared_ptr<arrow::RecordBatch>> batches;
  if (random_access) {
    const auto reader = value_of(arrow::ipc::RecordBatchFileReader::Open(file, options), path);
    for (int i = 0; i < reader->num_record_batches(); ++i)
      batches.push_back(value_of(reader->ReadRecordBatch(i), path));
  } else {
    const auto reader = value_of(arrow::ipc::RecordBatchStreamReader::Open(file, options), path);
    while (auto batch = value_of(reader->Next(), path)) batches.push_back(std::move(batch));
  }
  return std::make_unique<ArrowRecords>(path, std::move(batches));
}

std::unique_ptr<const RecordFile> open_parquet_records(const std::string& path) {
  using Read = const char* (*)(const char*, std::shared_ptr<arrow::Table>*);
  const std::filesystem::path library = installed_library("libtrellis_parquet.so");
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  const auto read =
      handle == nullptr ? nullptr : reinterpret_cast<Read>(::dlsym(handle, "trellis_read_parquet"));
  if (read == nullptr)
    throw ConfigError(path + ": Parquet is read by " + library.string() + ", which cannot be used" +
                      ": " + ::dlerror());
  std::shared_ptr<arrow::Table> table;
  if (const std::string why = read(path.c_str(), &table); !why.empty())
    throw ConfigError(path + ": " + why + "; copy or write the file again");
  std::vector<std::shared_ptr<arrow::RecordBatch>> batches;
  arrow::TableBatchReader reader(*table);
  while (auto batch = value_of(reader.Next(), path)) batches.push_back(std::move(batch));
  return std::make_unique<ArrowRecords>(path, std::move(batches));
}

}  // namespace trellis::trainer
