#pragma once

#include <memory>

#include "trainer/data/data_module.h"

namespace trellis::trainer {

/// Text files or JSONL, tokenised when the run starts. Throws ConfigError when a path is missing,
/// empty or too short for one global batch.
[[nodiscard]] std::shared_ptr<const DataModule> make_text_data_module(const RunConfig& config,
                                                                      const ResumePoint& resume);

}  // namespace trellis::trainer
