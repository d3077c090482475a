#pragma once

#include <memory>
#include <string>

#include "trainer/data/data_module.h"
#include "trainer/files/data/samples/sample.h"

namespace trellis::trainer {

/// One source of samples for each split; validation and test may be null.
struct SplitSources {
  std::shared_ptr<const SampleSource> train, validation, test;
  std::string description;
};

/// Deals samples to data-parallel ranks by NeMo's samplers: `single` (Megatron and Hugging Face
/// data) or `cyclic`. Training samples of fine-tuning are shuffled, unless data.shuffle is false.
[[nodiscard]] std::shared_ptr<const DataModule> make_sampled_data_module(const RunConfig& config,
                                                                         SplitSources sources,
                                                                         const ResumePoint& resume);

/// Records of fine-tuning: data.train_dir, val_dir and test_dir with model_alignment_strategy.
[[nodiscard]] SplitSources open_alignment_sources(const RunConfig& config);

/// Megatron data of `config.data`: prefixes, splits, blends, index maps.
[[nodiscard]] SplitSources open_megatron_sources(const RunConfig& config);

}  // namespace trellis::trainer
