#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "trainer/files/data/build_dataset.h"

namespace trellis::trainer {

struct HfBuildResult {
  std::int64_t rows = 0, padding = 0;  ///< padding: tokens of it in all rows
  std::int64_t sources = 0;            ///< documents or records
  std::int64_t dropped = 0;            ///< tokens after the last whole row of text
  std::int32_t vocab_size = 0;
};

/// `trellis data build --format arrow`: rows of `sequence_length` tokens in a folder that datasets'
/// load_from_disk reads, and the trainer without a section model_alignment_strategy.
/// Text: documents one after the other, cut into whole rows, of which every token is a label.
/// Records of supervised fine-tuning: one in each row, padded at the right; labels are the tokens
/// of its answers. Throws ConfigError for bad input, which names file and record.
HfBuildResult build_hf_dataset(const BuildRequest& request,
                               const std::function<void(const std::string&)>& progress);

}  // namespace trellis::trainer
