#pragma once

#include <memory>
#include <string>

#include "trainer/files/data/samples/sample.h"

namespace trellis::trainer {

/// A data set that the Python package `datasets` saved with save_to_disk: `state.json` names Arrow
/// stream files, which are mapped. Columns: `input_ids` (required), `labels` (default: input_ids)
/// and `attention_mask` (default: 1), lists of `sequence_length` whole numbers. Labels are moved by
/// one, as Hugging Face models do it themselves: label j of a sample is labels[j + 1], −100 at the
/// end. A label whose own token has attention_mask 0 is −100 as well, so that padding neither
/// teaches nor counts. Padding may only be at the right: causal attention then never reads it.
/// `key` ("data.train_dir") is named in errors. Throws ConfigError for whatever is missing or
/// corrupt.
[[nodiscard]] std::shared_ptr<const SampleSource> open_hf_dataset(const std::string& directory,
                                                                  std::int64_t sequence_length,
                                                                  const std::string& key);

}  // namespace trellis::trainer
