#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/files/mapped_file.h"

namespace trellis::trainer {

/// Type of a token in a .bin file; the number is the code in the .idx file (Megatron-LM). Code 6 is
/// float64, 7 has two meanings (float64 in NeMo, float32 in Megatron-Core): neither holds tokens,
/// both are refused.
enum class TokenType : std::uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint16 = 8
};
[[nodiscard]] std::size_t size_of(TokenType type);
[[nodiscard]] const char* name_of(TokenType type);
/// uint16 below 65500 ids, otherwise int32: Megatron's rule.
[[nodiscard]] TokenType token_type_for(std::int64_t vocabulary_size);

/// Megatron's indexed data set `<prefix>.bin` + `<prefix>.idx`, mapped. The .idx file, little
/// endian:
///   "MMIDIDX\0\0" · uint64 version 1 · uint8 type code · uint64 sequences N ·
///     uint64 entries of document index D
///   int32 sizes[N] (tokens) · int64 pointers[N] (bytes in .bin) ·
///     int64 document_index[D] (first 0, last N)
/// The constructor checks both files completely: header, lengths, every size and pointer against
/// the size of .bin. Throws ConfigError with file, offset, expected, got and what to do.
class IndexedDataset {
 public:
  explicit IndexedDataset(const std::string& prefix);

  [[nodiscard]] const std::string& prefix() const { return prefix_; }
  [[nodiscard]] TokenType type() const { return type_; }
  [[nodiscard]] std::int64_t num_sequences() const { return num_sequences_; }
  [[nodiscard]] std::int64_t num_documents() const { return num_document_entries_ - 1; }
  [[nodiscard]] std::int64_t num_tokens() const { return num_tokens_; }
  [[nodiscard]] std::int32_t size(std::int64_t sequence) const;
  [[nodiscard]] std::int64_t document_start(std::int64_t document) const;
  /// Tokens offset … offset + length − 1 of a sequence, to `out`.
  void read(std::int64_t sequence, std::int64_t offset, std::int64_t length,
            std::int64_t* out) const;
  /// Lets the system drop the pages that were read from memory.
  void release() const { tokens_.release(); }

 private:
  void read_header();
  void check_sequences();
  void check_documents();
  [[nodiscard]] std::int64_t pointer(std::int64_t sequence) const;

  std::string prefix_;
  MappedFile index_, tokens_;
  TokenType type_ = TokenType::kUint16;
  std::int64_t num_sequences_ = 0, num_document_entries_ = 0, num_tokens_ = 0;
};

}  // namespace trellis::trainer
