#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trellis::trainer {

/// A row as Hugging Face's models read it: labels are not moved, and −100 where there is no loss.
struct HfRow {
  std::vector<std::int32_t> input_ids;
  std::vector<std::int64_t> labels;  ///< of the same length
  std::int64_t attended = 0;         ///< tokens before the padding at the right
};

/// Writes a folder as datasets' save_to_disk does: one Arrow stream with `input_ids`,
/// `attention_mask` and `labels`, and the two notes next to it. Until finish() the folder is no
/// data set; destroyed before, its files are removed. The same rows give the same bytes.
class HfDatasetBuilder {
 public:
  /// Throws ConfigError when the folder has other files in it, or cannot be made.
  explicit HfDatasetBuilder(std::string directory);
  ~HfDatasetBuilder();
  HfDatasetBuilder(const HfDatasetBuilder&) = delete;
  HfDatasetBuilder& operator=(const HfDatasetBuilder&) = delete;

  void add(const HfRow& row);  ///< throws OutputError
  void finish();               ///< throws OutputError
  [[nodiscard]] std::int64_t num_rows() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trellis::trainer
