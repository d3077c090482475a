#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace trellis::trainer {

/// A table for a Parquet file: columns by name and type, rows of cells that hold the column's type,
/// or nothing.
struct TableRequest {
  enum class Type { kText, kInteger, kReal, kFlag };
  std::string schema = {};  ///< name and version, in the file's metadata as "schema"; "": none
  using Cell = std::variant<std::monostate, std::string, std::int64_t, double, bool>;
  std::vector<std::pair<std::string, Type>> columns;
  std::vector<std::vector<Cell>> rows;
};

}  // namespace trellis::trainer

/// Exported by libtrellis_parquet.so: the content of a Parquet file into `file`. Returns "" or what
/// went wrong, valid until the next call.
using trellis_write_parquet_fn = const char* (*)(const trellis::trainer::TableRequest*,
                                                 std::string* file);
