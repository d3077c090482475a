#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trainer/config/reader/section_reader.h"
#include "trainer/config/run_config.h"

/// One reader per section: defaults applied, each value checked by itself. Rules between values
/// are in cross_checks.h.
namespace trellis::trainer {

class Fields;
class YamlWriter;

/// `instance`: whose logical cores `devices: auto` counts.
[[nodiscard]] TrainerSection read_trainer(SectionReader& reader, const std::string& instance);
/// Why a text cannot name a folder below another one: it is absolute, goes up, or holds control
/// characters; "" when it can.
[[nodiscard]] std::string why_no_folder_below(const std::string& name);
/// `trainer`: receives exp_manager.max_time_per_run, NeMo's other name of trainer.max_time.
[[nodiscard]] ExpManagerSection read_exp_manager(SectionReader& reader, TrainerSection& trainer);
/// Keys of `exp_manager` and of its checkpoint_callback_params.
[[nodiscard]] CheckpointSection read_checkpoints(SectionReader& exp_manager);
/// NeMo's keys of checkpoints in section `model`.
void dist_ckpt_fields(Fields& fields, DistCkptSection& section);
[[nodiscard]] DistributedStrategySection read_distributed_strategy(SectionReader& reader);
/// `max_steps`: of the run: the schedule's length where it has no own, by which NxDT resolves
/// warmup_ratio and constant_ratio.
[[nodiscard]] OptimSection read_optim(SectionReader& reader, std::int64_t max_steps);
/// `model.moe`; none when the section is absent or empty.
[[nodiscard]] std::optional<MoeSection> read_moe(SectionReader& model, bool megatron);
/// Section `model_alignment_strategy`; what of it shapes the model goes into ModelSection.
struct AlignmentSection {
  std::string strategy;             ///< "", dpo, sft or orpo
  std::optional<LoraSection> lora;  ///< peft
  std::optional<OrpoSection> orpo;
  std::optional<DpoSection> dpo;
  RecordSection records;  ///< what of it shapes samples; `data` has the rest
};
[[nodiscard]] AlignmentSection read_alignment(SectionReader& reader);
/// `hf`: model_source is hf.
[[nodiscard]] DataSection read_data(SectionReader& reader, bool hf,
                                    const AlignmentSection& alignment);
/// `bf16_checkpoint`: what torch_dtype of config.json says of an hf model.
[[nodiscard]] PrecisionSection read_precision(SectionReader& reader, bool zero1,
                                              bool bf16_checkpoint);

/// Settings outside the section `model` that its reader needs.
struct ModelSurroundings {
  bool hf = false;
  std::filesystem::path directory;  ///< of the YAML: relative paths of model_config start there
  const DistributedStrategySection* strategy = nullptr;
  const TokenizerSection* tokenizer = nullptr;  ///< none: the data is tokenized already
  bool bf16_checkpoint = false;                 ///< result: torch_dtype of config.json is bfloat16
};
/// Everything but `optim`. The vocabulary is padded for the tensor-parallel size.
[[nodiscard]] ModelSection read_model(SectionReader& reader, ModelSurroundings& surroundings);

/// "00:04:00:00" (DD:HH:MM:SS) or {hours: 4} in seconds; none when absent or wrong.
[[nodiscard]] std::optional<double> read_duration(SectionReader& reader, const std::string& key);

/// The sections of the resolved YAML; `source`: the section as the file has it, of which keys
/// without a field stay.
void write_trainer(YamlWriter& out, TrainerSection section, const YamlMap& source);
void write_exp_manager(YamlWriter& out, ExpManagerSection section, const YamlMap& source);
void write_checkpoints(YamlWriter& out, CheckpointSection section, const YamlMap& source);
void write_distributed_strategy(YamlWriter& out, DistributedStrategySection section);
/// Section `model` with every size in it: config.json is not needed any more.
void write_model(YamlWriter& out, const RunConfig& config, const YamlMap& source);
void write_optim(YamlWriter& out, const OptimSection& section);
void write_precision(YamlWriter& out, PrecisionSection section);
void write_moe(YamlWriter& out, MoeSection section);
void write_data(YamlWriter& out, DataSection section, const YamlMap& source);

/// The keys of a section, for the table of known keys.
void list_trainer_keys(Fields& fields);
void list_exp_manager_keys(Fields& fields);
void list_checkpoint_keys(Fields& fields);
void list_checkpoint_params(Fields& fields);
void list_dist_ckpt_keys(Fields& fields);
void list_early_stopping_keys(Fields& fields);
void list_ema_keys(Fields& fields);
void list_distributed_strategy_keys(Fields& fields);
void list_model_keys(Fields& fields);
void list_fusion_keys(Fields& fields);
void list_rope_scaling_keys(Fields& fields);
void list_precision_keys(Fields& fields);
void list_dpo_keys(Fields& fields);
void list_sft_keys(Fields& fields);
void list_orpo_keys(Fields& fields);
void list_peft_keys(Fields& fields);
void list_moe_keys(Fields& fields);
void list_data_keys(Fields& fields);
void list_tokenizer_keys(Fields& fields);

}  // namespace trellis::trainer
