#include "cli/output/parquet_file.h"

#include "base/error.h"
#include "cli/launch/load_trainer.h"

namespace trellis::cli {

ParquetWriter::ParquetWriter(const std::string& file)
    : write_(file.empty() ? nullptr
                          : reinterpret_cast<trellis_write_parquet_fn>(library_symbol(
                                "libtrellis_parquet.so", "trellis_write_parquet"))) {}

std::string ParquetWriter::content(const trainer::TableRequest& table) const {
  std::string content;
  const std::string failure = write_(&table, &content);
  if (!failure.empty()) throw Error(ExitCode::kInternal, "no Parquet table: " + failure);
  return content;
}

}  // namespace trellis::cli
