#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/files/data/megatron/index_maps.h"
#include "trainer/files/data/samples/sample.h"

namespace trellis::trainer {

/// How a sample is made from its tokens.
struct GptSampleOptions {
  std::int64_t sequence_length = 0;
  std::int64_t eod_id = 0;
  bool eod_mask_loss = false;       ///< no loss where the input is EOD
  bool reset_position_ids = false;  ///< positions start again after an EOD
  bool extra_token =
      true;  ///< false: labels are the s tokens rolled left, the last one without loss
};

/// Makes an item from a text of s + 1 (without extra_token: s) tokens; −1 is padding: token 0, no
/// loss.
[[nodiscard]] Sample make_gpt_sample(std::vector<std::int64_t> text,
                                     const GptSampleOptions& options);

/// A part of one Megatron data set.
class GptDataset : public SampleSource {
 public:
  GptDataset(std::shared_ptr<const IndexedDataset> data, const IndexMapRequest& request,
             const GptSampleOptions& options, const std::string& index_directory);
  [[nodiscard]] std::int64_t num_samples() const override { return index_.num_samples(); }
  [[nodiscard]] Sample item(std::int64_t index) const override;
  [[nodiscard]] std::int64_t num_tokens() const override { return num_tokens_; }
  /// The s + 1 tokens of sample `index` in the training order, documents joined, short ones padded
  /// with −1.
  [[nodiscard]] std::vector<std::int64_t> text(std::int64_t index) const;

 private:
  void append(std::vector<std::int64_t>& text, std::int64_t position, std::int64_t begin,
              std::int64_t end) const;

  std::shared_ptr<const IndexedDataset> data_;
  SampleIndex index_;
  GptSampleOptions options_;
  std::string index_prefix_;
  std::int64_t num_tokens_ = 0;
};

}  // namespace trellis::trainer
