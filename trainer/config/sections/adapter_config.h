#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml/yaml.h"
#include "trainer/config/model_section.h"

namespace trellis::trainer {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";

/// Settings of saved adapters from adapter_config.json, PEFT's or NxD's; none: the file does not
/// have them.
struct AdapterConfig {
  std::string file;  ///< for error texts
  std::optional<int> rank;
  std::optional<double> alpha, dropout;
  std::optional<bool> use_rslora;
  std::optional<std::string> bias;
  std::optional<std::vector<std::string>> targets, modules_to_save;
  std::string target_regex;  ///< target_modules as one text
  std::string base_model;    ///< base_model_name_or_path; "": it does not say
};

/// Throws ConfigError with every problem: no JSON object, values of another type, kinds of adapters
/// that are not LoRA's (DoRA, ranks that differ from layer to layer, …).
[[nodiscard]] AdapterConfig parse_adapter_config(const std::string& text, const std::string& file);

/// adapter_config.json of `tag`'s folder, or of `folder`; "": there is none.
[[nodiscard]] std::filesystem::path adapter_config_file(const std::string& folder,
                                                        const std::string& tag);

/// With load_lora_from_ckpt, the keys of model_alignment_strategy.peft that the YAML leaves out, as
/// overrides: NxD takes LoRA's numbers from the checkpoint. Empty without it. Problems go to
/// `peft`.
[[nodiscard]] std::vector<std::string> overrides_of_adapter(const YamlMap& peft);

/// Peft names separate projections. A model that holds several in one layer has that layer's name
/// in `lora.targets` after this: gate_proj becomes gate_up_proj.
void name_fused_layers(const ModelSection& model, LoraSection& lora);

}  // namespace trellis::trainer
