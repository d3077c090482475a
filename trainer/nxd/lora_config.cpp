#include "trainer/nxd/lora_config.h"

#include <regex>

#include <c10/util/StringUtil.h>

namespace trellis::trainer {
namespace {

bool is_regex(const std::string& text) {
  try {
    const std::regex pattern(text);
    return true;
  } catch (const std::regex_error&) {
    return false;
  }
}

}  // namespace

void check_lora_config(const LoraConfig& config, Problems& problems) {
  const auto expect = [&](bool holds, const char* key, const std::string& text) {
    if (!holds) problems.add(std::string("lora_config.") + key, text);
  };
  // With load_lora_from_ckpt the numbers and targets are those that were saved.
  expect(config.lora_rank >= 1, "lora_rank",
         c10::str("expected 1 or more, got ", config.lora_rank));
  expect(config.lora_dropout >= 0 && config.lora_dropout < 1, "lora_dropout",
         c10::str("expected 0 or more and less than 1, got ", config.lora_dropout));
  expect(config.bias == "none" || config.bias == "all" || config.bias == "lora_only", "bias",
         "expected none, all or lora_only, got \"" + config.bias + "\"");
  expect(config.init_lora_weights == "default" || config.init_lora_weights == "gaussian",
         "init_lora_weights",
         "expected default or gaussian, got \"" + config.init_lora_weights + "\"");
  const bool has_names = !config.target_modules.empty(),
             has_regex = !config.target_modules_regex.empty();
  expect(!has_names || !has_regex, "target_modules",
         "expected names of modules or target_modules_regex, got both");
  expect(has_names || has_regex || config.load_lora_from_ckpt, "target_modules",
         "a model of your own has no default targets: expected names of its parallel layers, got "
         "none");
  expect(is_regex(config.target_modules_regex), "target_modules_regex",
         "expected a regular expression, got \"" + config.target_modules_regex + "\"");
  expect(!config.load_lora_from_ckpt || !config.lora_save_dir.empty(), "lora_save_dir",
         "load_lora_from_ckpt reads adapters there: expected a folder, got none");
}

LoraSection lora_section_of(const LoraConfig& config) {
  LoraSection section;
  section.rank = config.lora_rank;
  section.alpha = config.lora_alpha;
  section.dropout = config.lora_dropout;
  section.targets = config.target_modules;
  section.target_regex = config.target_modules_regex;
  section.modules_to_save = config.modules_to_save;
  section.bias = config.bias;
  section.use_rslora = config.use_rslora;
  section.gaussian = config.init_lora_weights == "gaussian";
  section.load = config.load_lora_from_ckpt;
  section.save_base = config.save_lora_base;
  section.merge = config.merge_lora;
  section.config_in_file = config.save_lora_config_adapter;
  section.folder = config.lora_save_dir;
  section.tag = config.lora_load_tag;
  return section;
}

}  // namespace trellis::trainer
