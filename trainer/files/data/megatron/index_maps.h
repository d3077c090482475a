#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "trainer/files/data/megatron/indexed_dataset.h"
#include "trainer/files/data/megatron/npy_file.h"

namespace trellis::trainer {

/// Sequences first … end − 1 of a data set.
struct SequenceRange {
  std::int64_t first = 0, end = 0;
  [[nodiscard]] std::int64_t count() const { return end - first; }
  bool operator==(const SequenceRange&) const = default;
};

/// Train, validation and test parts of N sequences. `weights`: any three numbers ≥ 0, one of them >
/// 0. Borders are the cumulative round(weight / sum · N), all shifted by the last one's distance to
/// N, as Megatron cuts them.
[[nodiscard]] std::vector<SequenceRange> split_ranges(const std::vector<double>& weights,
                                                      std::int64_t num_sequences);

/// The input of index maps.
struct IndexMapRequest {
  SequenceRange sequences;
  std::string split_name = "train";  ///< train, valid, test: part of the file name
  std::int64_t num_samples = 0;      ///< at least so many
  std::int64_t sequence_length = 0;  ///< s
  std::int64_t seed = 1234;
  bool extra_token = true;  ///< samples are s + 1 tokens and overlap by one; false:
                            ///< no_seqlen_plus_one_input_tokens
  bool drop_last = true;    ///< false: the last sample may be short
};

/// Numbers that follow from a request and the tokens of one epoch.
struct EpochPlan {
  std::int64_t tokens_per_epoch = 0;
  std::int64_t num_epochs = 0;     ///< smallest n with (n · tokens − e) / s ≥ num_samples
  std::int64_t total_samples = 0;  ///< of all epochs
  std::int64_t samples_without_last_epoch = 0;
  bool separate_last_epoch =
      false;  ///< the last epoch gives less than 80 % of its samples: it is shuffled separately
};
/// Throws ConfigError when the sequences hold fewer tokens than one sample.
[[nodiscard]] EpochPlan plan_epochs(const IndexedDataset& data, const IndexMapRequest& request);

/// Megatron's three maps, bit for bit those of NumPy:
///   document i of the shuffled order is sequence doc_idx[i]
///   sample j covers tokens (position in doc_idx, offset) = sample_idx[j] … sample_idx[j + 1], and
///     e tokens more
///   training step order: sample shuffle_idx[k]
struct IndexMaps {
  std::vector<std::int32_t> doc_idx;
  std::vector<std::int32_t> sample_idx;  ///< [total_samples + 1, 2]
  std::variant<std::vector<std::uint32_t>, std::vector<std::int64_t>> shuffle_idx;
};
[[nodiscard]] IndexMaps build_index_maps(const IndexedDataset& data,
                                         const IndexMapRequest& request);

/// `<prefix or directory/basename>_<split>_indexmap_<n>ns_<s>sl_<seed>s`; the files add
/// _doc_idx.npy, _sample_idx.npy and _shuffle_idx.npy.
[[nodiscard]] std::string index_map_prefix(const IndexedDataset& data,
                                           const IndexMapRequest& request,
                                           const std::string& directory);

/// The maps in use, mapped from their files or in memory.
class SampleIndex {
 public:
  /// Takes the files when they are there and fit the data; otherwise builds and writes them. One
  /// process of a machine builds, the others wait. In a folder that cannot be written they stay in
  /// memory, with a warning.
  static SampleIndex open(const IndexedDataset& data, const IndexMapRequest& request,
                          const std::string& directory);

  [[nodiscard]] std::int64_t num_samples() const { return num_samples_; }
  /// Number of document indices in all epochs: positions for document().
  [[nodiscard]] std::int64_t num_documents() const {
    return built_ ? static_cast<std::int64_t>(built_->doc_idx.size()) : doc_idx_->size();
  }
  [[nodiscard]] std::int64_t document(std::int64_t position) const;
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> border(std::int64_t sample) const;
  [[nodiscard]] std::int64_t shuffled(std::int64_t place) const;

 private:
  static std::optional<SampleIndex> load(const IndexedDataset& data, const IndexMapRequest& request,
                                         const std::string& prefix);
  [[nodiscard]] std::string misfit(const IndexedDataset& data,
                                   const IndexMapRequest& request) const;

  std::shared_ptr<const IndexMaps> built_;
  std::optional<NpyArray> doc_idx_, sample_idx_, shuffle_idx_;  ///< when not built_
  std::int64_t num_samples_ = 0;
};

}  // namespace trellis::trainer
