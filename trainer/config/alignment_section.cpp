#include <regex>

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

/// A list, or one text: a regular expression. Null: the model decides.
void read_targets(SectionReader& reader, LoraSection& lora) {
  if (!reader.has("target_modules")) return;
  if (!reader.has_value("target_modules")) {
    lora.targets.clear();
    return;
  }
  lora.target_regex = reader.raw("target_modules");
  if (lora.target_regex.empty()) {
    lora.targets = reader.get<std::vector<std::string>>("target_modules", lora.targets);
    if (lora.targets.empty())
      reader.problem("target_modules",
                     "names no layer, so nothing would be trained; expected some such as q_proj, "
                     "or null for those that the kind of model has by default");
    return;
  }
  (void)reader.get<std::string>("target_modules", "");
  lora.targets.clear();
  try {
    (void)std::regex(lora.target_regex);
  } catch (const std::regex_error& error) {
    reader.problem("target_modules",
                   fmt::format("expected a list of names, or a regular expression for whole paths "
                               "of modules, got `{}`: {}",
                               lora.target_regex, error.what()));
    lora.target_regex.clear();
  }
}

/// What of a training lora_save_dir gets: what is trained, or one of these.
void read_saves(SectionReader& reader, LoraSection& lora) {
  lora.save_base = reader.get<bool>("save_lora_base", lora.save_base);
  lora.merge = reader.get<bool>("merge_lora", lora.merge);
  lora.one_device = reader.get<bool>("merge_sharded_lora", lora.one_device);
  lora.config_in_file = reader.get<bool>("save_lora_config_adapter", lora.config_in_file);
  const auto excluded = [&](bool chosen, const char* key, const char* why) {
    if (chosen) reader.problem(key, std::string("expected false, got true: ") + why);
  };
  const char* whole = "merge_sharded_lora saves the adapters alone; remove one of them";
  excluded(lora.one_device && lora.save_base, "save_lora_base", whole);
  excluded(lora.one_device && lora.merge, "merge_lora", whole);
  const char* read_only =
      "with load_lora_from_ckpt nothing is saved in lora_save_dir, which adapters are read from; "
      "write such files from a checkpoint with `trellis checkpoint`";
  excluded(lora.load && lora.merge, "merge_lora", read_only);
  excluded(lora.load && lora.one_device, "merge_sharded_lora", read_only);
  if ((lora.merge || lora.one_device) && lora.folder.empty()) lora.folder = kLoraFolder;
}

LoraSection read_peft(SectionReader reader) {
  LoraSection lora;
  lora.rank = reader.positive("lora_rank", lora.rank);
  lora.alpha = reader.positive("lora_alpha", lora.alpha);
  lora.dropout = reader.fraction("lora_dropout", lora.dropout);
  lora.use_rslora = reader.get<bool>("use_rslora", lora.use_rslora);
  lora.gaussian =
      reader.one_of("init_lora_weights", "default", {"default", "gaussian"}) == "gaussian";
  lora.bias = reader.one_of("lora_bias", lora.bias, {"none", "all", "lora_only"});
  read_targets(reader, lora);
  lora.modules_to_save =
      reader.get<std::vector<std::string>>("modules_to_save", lora.modules_to_save);
  lora.load = reader.get<bool>("load_lora_from_ckpt", lora.load);
  lora.folder = reader.get<std::string>("lora_save_dir", lora.folder);
  if (lora.load && lora.folder.empty()) lora.folder = kLoraFolder;
  read_saves(reader, lora);
  lora.tag = reader.get<std::string>("lora_load_tag", lora.tag);
  if (!lora.tag.empty() && !lora.load)
    reader.problem(
        "lora_load_tag",
        fmt::format("{}: names saved adapters, and load_lora_from_ckpt is false: expected "
                    "true with it; or leave lora_load_tag out",
                    lora.tag));
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
  return section;
}

}  // namespace trellis::trainer
