#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// Text ↔ token ids. Not for several threads at a time, because it remembers words: make one for
/// each.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Ids of whole vocabulary, added tokens included: the largest id + 1.
  [[nodiscard]] virtual std::int32_t vocab_size() const = 0;
  [[nodiscard]] virtual std::optional<std::int32_t> eos_id() const = 0;
  [[nodiscard]] virtual std::optional<std::int32_t> bos_id() const = 0;
  [[nodiscard]] virtual std::optional<std::int32_t> pad_id() const = 0;
  /// Appends the ids of a UTF-8 text; no special token is added around it. Throws ConfigError for a
  /// text that the tokenizer cannot represent.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) = 0;
  /// The text of ids; special tokens are kept. Ids outside of the vocabulary give nothing.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

/// By `library` and what it needs; throws ConfigError when a file is missing, corrupt, or asks for
/// something that is not supported.
///   byte-level     a byte is its id, 256 ends a document
///   huggingface    type: tokenizer.json or a directory that holds it (and tokenizer_config.json
///                  with the special tokens)
///   megatron       type GPT2BPETokenizer: vocab_file, merge_file;
///                  type GPTSentencePieceTokenizer: model
///   sentencepiece  model
///   tiktoken       model; type llama3 or cl100k_base, for their special tokens
[[nodiscard]] std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerSection& section);

}  // namespace trellis::trainer
