#include <memory>
#include <string>

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/io/memory.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/writer.h>

#include "traces/table_request.h"

namespace trellis::trainer {
namespace {

template <typename Builder, typename Value>
arrow::Result<std::shared_ptr<arrow::Array>> build(const TableRequest& table, std::size_t column) {
  Builder builder;
  for (const auto& row : table.rows) {
    const auto* value = std::get_if<Value>(&row[column]);
    ARROW_RETURN_NOT_OK(value == nullptr ? builder.AppendNull() : builder.Append(*value));
  }
  return builder.Finish();
}

arrow::Result<std::shared_ptr<arrow::Array>> build_column(const TableRequest& table,
                                                          std::size_t column) {
  switch (table.columns[column].second) {
    case TableRequest::Type::kText: return build<arrow::StringBuilder, std::string>(table, column);
    case TableRequest::Type::kInteger:
      return build<arrow::Int64Builder, std::int64_t>(table, column);
    case TableRequest::Type::kReal: return build<arrow::DoubleBuilder, double>(table, column);
    case TableRequest::Type::kFlag: return build<arrow::BooleanBuilder, bool>(table, column);
  }
  return arrow::Status::Invalid("a column of no type");
}

arrow::Result<std::string> content_of(const TableRequest& request) {
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (std::size_t i = 0; i < request.columns.size(); ++i) {
    ARROW_ASSIGN_OR_RAISE(auto array, build_column(request, i));
    fields.push_back(arrow::field(request.columns[i].first, array->type()));
    arrays.push_back(std::move(array));
  }
  std::shared_ptr<arrow::KeyValueMetadata> metadata;
  if (!request.schema.empty())
    metadata = arrow::KeyValueMetadata::Make({"schema"}, {request.schema});
  const auto table = arrow::Table::Make(arrow::schema(fields, metadata), arrays,
                                        static_cast<std::int64_t>(request.rows.size()));
  ARROW_ASSIGN_OR_RAISE(auto out, arrow::io::BufferOutputStream::Create());
  parquet::ArrowWriterProperties::Builder options;
  if (metadata) options.store_schema();
  ARROW_RETURN_NOT_OK(parquet::arrow::WriteTable(
      *table, arrow::default_memory_pool(), out, parquet::DEFAULT_MAX_ROW_GROUP_LENGTH,
      parquet::default_writer_properties(), options.build()));
  ARROW_ASSIGN_OR_RAISE(const auto content, out->Finish());
  return content->ToString();
}

arrow::Result<std::shared_ptr<arrow::Table>> table_of(const std::string& path) {
  ARROW_ASSIGN_OR_RAISE(auto file,
                        arrow::io::MemoryMappedFile::Open(path, arrow::io::FileMode::READ));
  ARROW_ASSIGN_OR_RAISE(auto reader, parquet::arrow::OpenFile(file, arrow::default_memory_pool()));
  return reader->ReadTable();
}

}  // namespace
}  // namespace trellis::trainer

extern "C" __attribute__((visibility("default"))) const char* trellis_write_parquet(
    const trellis::trainer::TableRequest* request, std::string* file) {
  static thread_local std::string text;
  try {
    arrow::Result<std::string> content = trellis::trainer::content_of(*request);
    text = content.ok() ? "" : content.status().ToString();
    if (content.ok()) *file = content.MoveValueUnsafe();
  } catch (const std::exception& error) {
    text = error.what();
  }
  return text.c_str();
}

/// The whole file as a table. Returns "" or what is wrong, valid until the thread's next call.
extern "C" __attribute__((visibility("default"))) const char* trellis_read_parquet(
    const char* path, std::shared_ptr<arrow::Table>* table) {
  static thread_local std::string text;
  try {
    arrow::Result<std::shared_ptr<arrow::Table>> read = trellis::trainer::table_of(path);
    text = read.ok() ? "" : read.status().ToString();
    if (read.ok()) *table = read.MoveValueUnsafe();
  } catch (const std::exception& error) {
    text = error.what();
  }
  return text.c_str();
}
