#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trainer/files/data/alignment/record_tokens.h"
#include "trainer/files/data/samples/sample.h"

namespace trellis::trainer {

/// How records become samples of `sequence` tokens, padded at the right.
struct AlignmentSampleOptions {
  std::int64_t sequence = 0;
  std::int64_t most_records = 0;  ///< only the first ones; 0: all
  Truncation truncation = Truncation::kKeepStart;
  /// Supervised: records are laid one after the other into a sequence, in the order of the file, as
  /// long as they fit. Each is a document: positions start again, attention does not cross.
  bool packing = false;
  std::optional<std::int64_t> max_prompt_length = {};  ///< preferences; none: cut as one
  bool next_tokens = false;                            ///< preferences: Sample::next_tokens as well
};

/// Supervised fine-tuning: labels are the tokens of answers, −100 elsewhere. With packing every
/// record is tokenised once, on all cores, to learn where samples begin; else a record is read when
/// its sample is.
class AnsweredSamples : public SampleSource {
 public:
  AnsweredSamples(std::shared_ptr<const RecordTokens> records,
                  const AlignmentSampleOptions& options);
  [[nodiscard]] std::int64_t num_samples() const override;
  [[nodiscard]] Sample item(std::int64_t index) const override;
  [[nodiscard]] std::int64_t num_tokens() const override {
    return num_samples() * options_.sequence;
  }
  [[nodiscard]] std::string where(std::int64_t index) const override;
  /// "1200 records in 310 sequences of 512 tokens, 3.1 % of them padding".
  [[nodiscard]] std::string description() const;

 private:
  void pack();
  void append(std::int64_t record, std::int64_t document, Sample& sample) const;

  std::shared_ptr<const RecordTokens> records_;
  AlignmentSampleOptions options_;
  std::int64_t num_records_;
  std::vector<std::int64_t> packs_;  ///< the first record of each, and the end
  std::int64_t packed_tokens_ = 0;
};

/// Preference optimization: a sample is prompt and chosen answer, its `rejected` prompt and the
/// other one; labels are the tokens of the answer.
class PreferenceSamples : public SampleSource {
 public:
  PreferenceSamples(std::shared_ptr<const RecordTokens> records,
                    const AlignmentSampleOptions& options);
  [[nodiscard]] std::int64_t num_samples() const override { return num_records_; }
  [[nodiscard]] Sample item(std::int64_t index) const override;
  [[nodiscard]] std::int64_t num_tokens() const override {
    return num_records_ * options_.sequence;
  }
  [[nodiscard]] std::string where(std::int64_t index) const override {
    return records_->texts().where(index);
  }

 private:
  [[nodiscard]] Sample sequence(const AnsweredTokens& tokens) const;

  std::shared_ptr<const RecordTokens> records_;
  AlignmentSampleOptions options_;
  std::int64_t num_records_;
};

}  // namespace trellis::trainer
