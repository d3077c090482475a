#pragma once

#include <string>

#include "traces/table_request.h"

namespace trellis::cli {

/// Writes Parquet, in a library that only the verbs that write it load. Loaded before anything that
/// takes time, since it may be missing. Throws ConfigError then.
class ParquetWriter {
 public:
  /// `file`: an option's value; "": no table is asked for, and nothing is loaded.
  explicit ParquetWriter(const std::string& file);
  /// The content of a Parquet file. REQUIRES: a file was asked for.
  [[nodiscard]] std::string content(const trainer::TableRequest& table) const;

 private:
  trellis_write_parquet_fn write_ = nullptr;
};

}  // namespace trellis::cli
