#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/files/atomic_file.h"
#include "trainer/files/data/megatron/indexed_dataset.h"

namespace trellis::trainer {

/// Writes `<prefix>.bin` and `<prefix>.idx`, Megatron's builder: add_item, end_document,
/// merge_file_, finalize. Both appear when finalize() returns, and not at all without it.
class IndexedDatasetBuilder {
 public:
  IndexedDatasetBuilder(std::string prefix, TokenType type);

  /// One sequence. Throws ConfigError when an id does not fit the type.
  void add_item(std::span<const std::int32_t> tokens);
  /// The sequences since the last call are one document.
  void end_document();
  /// Appends the sequences and documents of another data set of the same type.
  void merge_file(const IndexedDataset& other);
  void finalize();

  [[nodiscard]] std::int64_t num_tokens() const { return num_tokens_; }
  [[nodiscard]] std::int64_t num_documents() const {
    return static_cast<std::int64_t>(document_index_.size()) - 1;
  }

 private:
  void add_sequence(std::int64_t tokens);
  template <typename T>
  void write_tokens(std::span<const std::int32_t> tokens);
  template <typename T>
  void write_merged(const IndexedDataset& other, std::int64_t sequence);

  std::string prefix_;
  TokenType type_;
  AtomicFile tokens_, index_;
  std::vector<std::int32_t> sizes_;
  std::vector<std::int64_t> document_index_{0};
  std::int64_t num_tokens_ = 0;
};

}  // namespace trellis::trainer
