#include <regex>

#include <fmt/format.h>

#include "trainer/config/reader/fields.h"
#include "trainer/config/sections/sections.h"

namespace trellis::trainer {
namespace {

/// Fields of prompt and answer. The prompt's length is checked together with the sequence's.
void pair_fields(Fields& fields, RecordSection& s) {
  fields.positive("max_prompt_length", s.max_prompt_length);
  fields.one_of("truncation_mode", s.truncation_mode, {"keep_start", "keep_end"});
}

void dpo_fields(Fields& fields, DpoSection& s) {
  fields.only_read("loss_type",
                   [](SectionReader& r) { (void)r.one_of("loss_type", "sigmoid", {"sigmoid"}); });
  fields.only_read("precompute_ref_log_probs", [](SectionReader& r) {
    if (!r.get<bool>("precompute_ref_log_probs", true)) {
      r.problem("precompute_ref_log_probs",
                "must be true: the reference model is run once, before training");
    }
  });
  fields.positive("kl_beta", s.beta);
  fields.own().text("ref_log_probs_cache", s.ref_cache);
  fields.own().only_read("reference", [&](SectionReader& r) {
    s.starts_with_adapters = r.one_of("reference", "base", {"base", "start"}) == "start";
  });
}

void sft_fields(Fields& fields, RecordSection& s) {
  fields.boolean("packing", s.packing);
  fields.own().one_of("truncation_mode", s.truncation_mode, {"keep_start", "keep_end"});
}

void orpo_fields(Fields& fields, OrpoSection& s) {
  fields.positive("beta", s.beta);
  fields.own().only_read("implementation", [&](SectionReader& r) {
    s.trl = r.one_of("implementation", "nxdt", {"nxdt", "trl"}) == "trl";
  });
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

/// Checks which weights lora_save_dir gets: those that are trained, or one of these choices.
void check_saves(SectionReader& reader, LoraSection& lora) {
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
  if ((lora.load || lora.merge || lora.one_device) && lora.folder.empty())
    lora.folder = kLoraFolder;
  if (!lora.tag.empty() && !lora.load)
    reader.problem(
        "lora_load_tag",
        fmt::format("{}: names saved adapters, and load_lora_from_ckpt is false: expected "
                    "true with it; or leave lora_load_tag out",
                    lora.tag));
}

void peft_fields(Fields& fields, LoraSection& s) {
  fields.positive("lora_rank", s.rank);
  fields.positive("lora_alpha", s.alpha);
  fields.fraction("lora_dropout", s.dropout);
  fields.one_of("lora_bias", s.bias, {"none", "all", "lora_only"});
  fields.only_read("target_modules", [&](SectionReader& r) { read_targets(r, s); });
  fields.boolean("load_lora_from_ckpt", s.load);
  fields.boolean("save_lora_base", s.save_base);
  fields.boolean("merge_lora", s.merge);
  fields.boolean("save_lora_config_adapter", s.config_in_file);
  fields.boolean("merge_sharded_lora", s.one_device);
  // NxD's LoraConfig has these, NxDT's YAML does not.
  fields.own().boolean("use_rslora", s.use_rslora);
  fields.own().only_read("init_lora_weights", [&](SectionReader& r) {
    s.gaussian = r.one_of("init_lora_weights", "default", {"default", "gaussian"}) == "gaussian";
  });
  fields.own().texts("modules_to_save", s.modules_to_save);
  fields.own().text("lora_save_dir", s.folder);
  fields.own().text("lora_load_tag", s.tag);
  fields.rule([&](SectionReader& r) { check_saves(r, s); });
}

void read_section(SectionReader& strategy, const std::string& key,
                  const std::function<void(Fields& fields)>& visit) {
  SectionReader reader = strategy.section(key);
  Fields fields = Fields::reading(reader);
  visit(fields);
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
  DpoSection dpo;
  OrpoSection orpo;
  read_section(reader, "dpo", [&](Fields& fields) { dpo_fields(fields, dpo); });
  read_section(reader, "orpo", [&](Fields& fields) { orpo_fields(fields, orpo); });
  if (chosen == "dpo") section.dpo = dpo;
  if (chosen == "orpo") section.orpo = orpo;
  if (!chosen.empty()) {
    read_section(reader, chosen, [&](Fields& fields) {
      if (chosen == "sft") {
        sft_fields(fields, section.records);
      } else {
        pair_fields(fields, section.records);
      }
    });
  }
  if (reader.has_value("peft")) {
    section.lora.emplace();
    read_section(reader, "peft", [&](Fields& fields) { peft_fields(fields, *section.lora); });
  }
  return section;
}

void list_dpo_keys(Fields& fields) {
  DpoSection dpo;
  RecordSection records;
  dpo_fields(fields, dpo);
  pair_fields(fields, records);
}

void list_sft_keys(Fields& fields) {
  RecordSection records;
  sft_fields(fields, records);
}

void list_orpo_keys(Fields& fields) {
  OrpoSection orpo;
  RecordSection records;
  orpo_fields(fields, orpo);
  pair_fields(fields, records);
}

void list_peft_keys(Fields& fields) {
  LoraSection lora;
  peft_fields(fields, lora);
}

}  // namespace trellis::trainer
