#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trainer/files/data/alignment/record_texts.h"
#include "trainer/files/data/tokenizers/tokenizer.h"

namespace trellis::trainer {

/// A record as tokens.
struct AnsweredTokens {
  std::vector<std::int32_t> ids;
  std::vector<bool> answer;  ///< of each token: it is learned
};
struct PreferenceTokens {
  AnsweredTokens chosen, rejected;
};

/// A record as a question: what a model reads before its last answer, and that answer.
struct QuestionTokens {
  std::vector<std::int32_t> ids;
  std::string prompt, answer;  ///< texts; the answer without the special token that ends it
  std::optional<std::int32_t> end = {};  ///< of a chat: that token
};

/// Which end of a record is kept when it is longer than the sequence.
enum class Truncation { kKeepStart, kKeepEnd };

/// Records as tokens. A chat is encoded as a whole, as apply_chat_template does, and each token
/// that has a byte of an answer is learned. In other records prompt and answer are encoded
/// separately, as NxDT does, with special tokens around them (TokenizerSection::special_tokens) and
/// an end-of-sequence token; none is added where the text has it already. Safe for several threads:
/// each has its own tokenizer.
class RecordTokens {
 public:
  /// Throws ConfigError when a tokenizer cannot be made, or names no end-of-sequence token.
  RecordTokens(std::shared_ptr<const RecordTexts> texts, TokenizerSection tokenizer);

  /// The record as at most `length` tokens. Throws ConfigError, which names file and record, when
  /// nothing of the answer is left.
  [[nodiscard]] AnsweredTokens answered(std::int64_t index, std::int64_t length,
                                        Truncation truncation) const;
  /// Throws ConfigError, which names file and record, when there is nothing before the answer.
  [[nodiscard]] QuestionTokens question(std::int64_t index) const;
  /// The two sequences of a record, at most `length` tokens each. Without `max_prompt_length`
  /// prompt and answer are cut as one, as TRL 1.16 does. With it, as NxDT and earlier TRL: when
  /// prompt and longer answer exceed `length`, that many tokens of the prompt stay, its first or
  /// last ones; when they still do, length − max_prompt_length tokens of each answer.
  [[nodiscard]] PreferenceTokens preference(std::int64_t index, std::int64_t length,
                                            std::optional<std::int64_t> max_prompt_length,
                                            Truncation truncation) const;
  [[nodiscard]] std::int32_t pad_id() const { return pad_id_; }
  [[nodiscard]] const RecordTexts& texts() const { return *texts_; }

 private:
  /// A tokenizer remembers words: each is used by one thread at a time, and goes back.
  class Lease;
  [[nodiscard]] AnsweredTokens tokens_of(const AnsweredText& text, std::int64_t index) const;
  void require_label(const AnsweredTokens& tokens, std::size_t whole, std::int64_t length,
                     std::int64_t index) const;

  std::shared_ptr<const RecordTexts> texts_;
  TokenizerSection section_;
  SpecialAffixes affixes_;
  std::int32_t eos_id_ = 0, pad_id_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Tokenizer>> free_;
};

}  // namespace trellis::trainer
