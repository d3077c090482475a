#include <algorithm>

#include <fmt/format.h>

#include "trainer/config/sections.h"

namespace trellis::trainer {
namespace {

/// Of prompt and answer. Which length the prompt has is checked with that of the sequence.
void read_pairs(SectionReader reader, RecordSection& records) {
  records.max_prompt_length = reader.positive("max_prompt_length", records.max_prompt_length);
  records.truncation_mode =
      reader.one_of("truncation_mode", records.truncation_mode, {"keep_start", "keep_end"});
}

void read_sft(SectionReader reader, RecordSection& records) {
  records.packing = reader.get<bool>("packing", records.packing);
  records.truncation_mode =
      reader.one_of("truncation_mode", records.truncation_mode, {"keep_start", "keep_end"});
}

DpoSection read_dpo(SectionReader reader) {
  DpoSection dpo;
  dpo.beta = reader.positive("kl_beta", dpo.beta);
  dpo.ref_cache = reader.get<std::string>("ref_log_probs_cache", "");
  (void)reader.one_of("loss_type", "sigmoid", {"sigmoid"});
  if (!reader.get<bool>("precompute_ref_log_probs", true)) {
    reader.problem("precompute_ref_log_probs",
                   "must be true: the reference model is run once, before training");
  }
  return dpo;
}

OrpoSection read_orpo(SectionReader reader) {
  OrpoSection orpo;
  orpo.beta = reader.positive("beta", orpo.beta);
  orpo.trl = reader.one_of("implementation", "nxdt", {"nxdt", "trl"}) == "trl";
  return orpo;
}

LoraSection read_peft(SectionReader reader) {
  static const std::vector<std::string> kTargets = {"qkv_proj", "o_proj", "gate_up_proj",
                                                    "down_proj"};
  LoraSection lora;
  lora.rank = reader.positive("lora_rank", lora.rank);
  lora.alpha = reader.positive("lora_alpha", lora.alpha);
  lora.dropout = reader.fraction("lora_dropout", lora.dropout);
  lora.use_rslora = reader.get<bool>("use_rslora", lora.use_rslora);
  lora.gaussian =
      reader.one_of("init_lora_weights", "default", {"default", "gaussian"}) == "gaussian";
  const std::string biases = reader.one_of("lora_bias", "none", {"none", "all", "lora_only"});
  if (biases != "none")
    reader.unsupported("lora_bias", fmt::format("training biases with LoRA adapters ({})", biases));
  lora.targets = reader.get<std::vector<std::string>>("target_modules", lora.targets);
  for (const std::string& target : lora.targets) {
    if (std::ranges::find(kTargets, target) != kTargets.end()) continue;
    reader.problem("target_modules",
                   fmt::format("`{}` takes no adapter; expected {}", target, join_names(kTargets)));
  }
  if (lora.targets.empty())
    reader.problem(
        "target_modules",
        "names no layer, so nothing would be trained; expected some of " + join_names(kTargets));
  if (reader.get<bool>("load_lora_from_ckpt", false)) {
    reader.unsupported("load_lora_from_ckpt", "checkpoints are not read in this version",
                       /*changes_step=*/false);
  }
  return lora;
}

}  // namespace

AlignmentSection read_alignment(SectionReader& reader) {
  AlignmentSection section;
  std::string& chosen = section.strategy;
  for (const char* name : {"dpo", "orpo", "sft"}) {  // the order in which NxDT looks
    if (!reader.has(name)) continue;
    if (!chosen.empty())
      reader.problem(
          name,
          fmt::format("excludes {}: expected one strategy of dpo, sft and orpo; remove one of them",
                      chosen));
    if (chosen.empty()) chosen = name;
  }
  if (reader.empty()) return {};
  if (chosen.empty()) reader.problem("sft", "one of dpo, sft and orpo is required and missing");
  const DpoSection dpo = read_dpo(reader.section("dpo"));
  if (chosen == "dpo") section.dpo = dpo;
  const OrpoSection orpo = read_orpo(reader.section("orpo"));
  if (chosen == "orpo") section.orpo = orpo;
  if (chosen == "sft") read_sft(reader.section("sft"), section.records);
  if (chosen == "dpo" || chosen == "orpo") read_pairs(reader.section(chosen), section.records);
  if (reader.has_value("peft")) section.lora = read_peft(reader.section("peft"));
  // Steps of SFT and ORPO are supported; DPO's reads log-probabilities of a reference model.
  if (!chosen.empty())
    reader.unsupported(chosen, fmt::format("model alignment ({})", chosen),
                       /*changes_step=*/chosen == "dpo");
  return section;
}

}  // namespace trellis::trainer
