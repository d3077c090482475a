#pragma once

#include <string>
#include <vector>

#include "analysis/import/imported_config.h"

/// The configurations that can be imported. Each throws ConfigError (file:line) for a file that
/// cannot be read as what it should be; nothing in a file is executed.
namespace trellis::analysis {

class ShellReader;

/// A YAML file of NxDT: its schema is this program's. `overrides`: "key.path=value".
[[nodiscard]] ImportedConfig import_nxdt(const std::string& file,
                                         const std::vector<std::string>& overrides);
/// A YAML file of NeMo 1.x or NeMo-Megatron for Neuron (NNM): NxDT's table of renamed keys.
[[nodiscard]] ImportedConfig import_nemo(const std::string& file,
                                         const std::vector<std::string>& overrides);
/// A command line of Megatron-LM (pretrain_gpt.py and its like): a text file, a shell script, or
/// one with variables that another script sources (analysis/import/shell_words.h).
[[nodiscard]] ImportedConfig import_megatron(const std::string& file);
/// The same for a text that is in no file. `name`: in place of a file's.
[[nodiscard]] ImportedConfig import_megatron_text(const std::string& text, const std::string& name,
                                                  ShellReader& reader);
/// A TOML file of torchtitan up to 0.2.2, or the JSON that 0.3, which is configured in Python,
/// writes of its configuration.
[[nodiscard]] ImportedConfig import_torchtitan(const std::string& file);
[[nodiscard]] ImportedConfig import_torchtitan_text(const std::string& text,
                                                    const std::string& name);
/// A Hugging Face model's folder or config.json, and transformers' TrainingArguments as JSON next
/// to it (training_args.json) or named by `training_args` ("": none is needed).
[[nodiscard]] ImportedConfig import_hugging_face(const std::string& path,
                                                 const std::string& training_args);

/// transformers' TrainingArguments alone, a JSON text that is in no file (`name`: in place of a
/// file's), for a model with `kv_heads` key/value heads.
[[nodiscard]] ImportedConfig import_training_arguments(const std::string& text,
                                                       const std::string& name, int kv_heads);

/// "nxdt", "nemo", "megatron", "torchtitan" or "hf", by what the file holds. Throws ConfigError
/// when that is unclear.
[[nodiscard]] std::string detect_source(const std::string& file);

}  // namespace trellis::analysis
