#include <algorithm>

#include <fmt/format.h>

#include "trainer/config/sections.h"

namespace trellis::trainer {
namespace {

void check_prompts(SectionReader& reader) {
  (void)reader.positive("max_prompt_length", 2048);
  (void)reader.one_of("truncation_mode", "keep_start", {"keep_start", "keep_end"});
}

void check_dpo(SectionReader reader) {
  (void)reader.positive("kl_beta", 0.01);
  (void)reader.one_of("loss_type", "sigmoid", {"sigmoid"});
  check_prompts(reader);
  if (!reader.get<bool>("precompute_ref_log_probs", true)) {
    reader.problem("precompute_ref_log_probs", "must be true: the reference model is run once, before training");
  }
}

void check_orpo(SectionReader reader) {
  (void)reader.positive("beta", 0.01);
  check_prompts(reader);
}

void check_peft(SectionReader reader) {
  static const std::vector<std::string> kTargets = {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"};
  (void)reader.positive("lora_rank", 16);
  (void)reader.positive("lora_alpha", 32.0);
  (void)reader.fraction("lora_dropout", 0.05);
  (void)reader.one_of("lora_bias", "none", {"none", "all", "lora_only"});
  for (const std::string& target : reader.get<std::vector<std::string>>("target_modules", {})) {
    if (std::ranges::find(kTargets, target) != kTargets.end()) continue;
    reader.problem("target_modules", fmt::format("`{}` takes no adapter; expected {}", target, join_names(kTargets)));
  }
  for (const char* key : {"lora_verbose", "load_lora_from_ckpt", "save_lora_base", "merge_lora", "save_lora_config_adapter", "merge_sharded_lora"}) {
    (void)reader.get<bool>(key, false);
  }
}

}  // namespace

std::string read_alignment(SectionReader& reader, bool& lora) {
  std::string chosen;
  for (const char* name : {"dpo", "orpo", "sft"}) {  // the order in which NxDT looks
    if (!reader.has(name)) continue;
    if (!chosen.empty()) reader.problem(name, fmt::format("excludes {}: expected one strategy of dpo, sft and orpo; remove one of them", chosen));
    if (chosen.empty()) chosen = name;
  }
  if (reader.empty()) return "";
  if (chosen.empty()) reader.problem("sft", "one of dpo, sft and orpo is required and missing");
  check_dpo(reader.section("dpo"));
  check_orpo(reader.section("orpo"));
  (void)reader.section("sft").get<bool>("packing", false);
  lora = reader.has_value("peft");
  if (lora) check_peft(reader.section("peft"));
  if (!chosen.empty()) reader.unsupported(chosen, fmt::format("model alignment ({})", chosen));
  if (lora) reader.unsupported("peft", "LoRA adapters");
  return chosen;
}

}  // namespace trellis::trainer
