#pragma once

#include <string>

#include "trainer/config/run_config.h"
#include "trainer/config/section_reader.h"

/// One reader per section: defaults applied, each value checked by itself. Rules between values stand in cross_checks.h.
namespace trellis::trainer {

[[nodiscard]] TrainerSection read_trainer(SectionReader& reader);
[[nodiscard]] ExpManagerSection read_exp_manager(SectionReader& reader);
[[nodiscard]] DistributedStrategySection read_distributed_strategy(SectionReader& reader);
[[nodiscard]] DataSection read_data(SectionReader& reader);
/// `max_steps`: the schedule's length, by which NxDT resolves warmup_ratio and constant_ratio.
[[nodiscard]] OptimSection read_optim(SectionReader& reader, std::int64_t max_steps);
/// Everything but `optim`. `model_source`: "megatron" or "hf". The vocabulary is padded for tensor_model_parallel_size.
[[nodiscard]] ModelSection read_model(SectionReader& reader, const std::string& model_source, int tensor_model_parallel_size);
[[nodiscard]] PrecisionSection read_precision(SectionReader& reader, bool zero1);

}  // namespace trellis::trainer
