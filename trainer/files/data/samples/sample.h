#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trellis::trainer {

/// One sample as the model reads it: a row of a micro-batch, each member of length s.
struct Sample {
  std::vector<std::int64_t> tokens, labels;
  std::vector<std::int64_t> position_ids;  ///< empty: 0 … s − 1
  std::vector<float> loss_mask;            ///< empty: 1 everywhere
  std::vector<std::int64_t> documents;     ///< MicroBatch::attention_mask; empty: one document
  std::vector<std::int64_t> next_tokens;   ///< MicroBatch::next_tokens; empty: not asked for
  std::vector<Sample> rejected;            ///< preference pairs: one, the other answer
};

/// Something with numbered samples: a part of a data set, or a blend. Safe for several threads.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  [[nodiscard]] virtual std::int64_t num_samples() const = 0;
  /// `index` from 0. Negative: a row that only fills a batch, whose loss_mask is 0.
  [[nodiscard]] virtual Sample item(std::int64_t index) const = 0;
  [[nodiscard]] virtual std::int64_t num_tokens() const = 0;  ///< of one epoch
  /// The place of a sample in its file, for people; "" where samples are no records.
  [[nodiscard]] virtual std::string where(std::int64_t) const { return ""; }
};

}  // namespace trellis::trainer
