#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

namespace trellis::trainer {

/// Numbered records, each an object of named columns. Members keep their order: chat templates
/// print them. For several threads.
class RecordFile {
 public:
  virtual ~RecordFile() = default;
  [[nodiscard]] virtual std::int64_t num_records() const = 0;
  /// Record `index`, from 0. Throws ConfigError when it is no object, or corrupt.
  [[nodiscard]] virtual nlohmann::ordered_json record(std::int64_t index) const = 0;
  /// Why no record has a column that the file does have; "" for others.
  [[nodiscard]] virtual std::string why_absent(const std::string&) const { return ""; }
  /// Its place for people: "train.jsonl:12" (line), "train.parquet: record 12" (from 1).
  [[nodiscard]] virtual std::string where(std::int64_t index) const = 0;
};

/// By the name of the file:
///   .jsonl            a JSON object in each line; blank lines are left out
///   .json             an array of objects, or lines as above
///   .arrow, .parquet  a row is a record
/// or a folder: what datasets' save_to_disk wrote, or files of these kinds, sorted by name. Records
/// of JSON lines are found without being parsed: a file of 1 GB opens in a second. Throws
/// ConfigError, which names `key`, when there is no such file, it holds no record, or it is
/// corrupt.
[[nodiscard]] std::unique_ptr<const RecordFile> open_records(const std::string& path,
                                                             const std::string& key);

/// Arrow's stream and file formats; Parquet. Called by open_records().
[[nodiscard]] std::unique_ptr<const RecordFile> open_arrow_records(const std::string& path);
[[nodiscard]] std::unique_ptr<const RecordFile> open_parquet_records(const std::string& path);

}  // namespace trellis::trainer
