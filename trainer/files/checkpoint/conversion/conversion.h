#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "trainer/files/checkpoint/conversion/tensor_fill.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"

namespace trellis::trainer {
struct ModelSection;
}

/// Parts that the writers of all formats share.
namespace trellis::checkpoint {

struct ConvertOptions {
  bool weights_only = false;        ///< no optimizer states
  std::optional<DType> dtype = {};  ///< of the weights; none: as they are
  /// The model whose properties are written as Megatron's arguments; null: only those that follow
  /// from the weights.
  const trainer::ModelSection* model = nullptr;
};

/// Bytes that are done, and all of them.
using Progress = std::function<void(std::int64_t done, std::int64_t of)>;

/// The tensors of a checkpoint as a conversion writes them.
class ConvertedTensors {
 public:
  /// Throws ConfigError for weights that have no form in the wanted type.
  ConvertedTensors(const TensorSource& source, const ConvertOptions& options);
  /// The tensors by key, in the types of the converted checkpoint.
  [[nodiscard]] const std::vector<TensorEntry>& entries() const { return entries_; }
  /// The elements of one of them, piece by piece in row-major order. A weight of fewer bits than
  /// asked for comes from its master.
  void read(const TensorEntry& entry, const WriteBytes& take) const;

 private:
  const TensorSource& source_;
  TensorIndex index_;
  std::vector<TensorEntry> entries_;
};

/// Counts what is written, on any thread.
class ByteProgress {
 public:
  ByteProgress(std::int64_t of, Progress progress) : of_(of), progress_(std::move(progress)) {}
  ByteProgress(const std::vector<TensorEntry>& entries, Progress progress);
  void add(std::size_t bytes) {
    const std::int64_t done = done_ += static_cast<std::int64_t>(bytes);
    if (progress_) progress_(done, of_);
  }

 private:
  std::atomic<std::int64_t> done_ = 0;
  std::int64_t of_;
  Progress progress_;
};

}  // namespace trellis::checkpoint
