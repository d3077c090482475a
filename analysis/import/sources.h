#pragma once

#include <string>
#include <vector>

#include "analysis/import/imported_config.h"

/// The configurations that can be imported. Each throws ConfigError (file:line) for a file that
/// cannot be read as what it should be; nothing in a file is executed.
namespace trellis::analysis {

/// A YAML file of NxDT: its schema is this program's. `overrides`: "key.path=value".
[[nodiscard]] ImportedConfig import_nxdt(const std::string& file,
                                         const std::vector<std::string>& overrides);
/// A YAML file of NeMo 1.x or NeMo-Megatron for Neuron (NNM): NxDT's table of renamed keys.
[[nodiscard]] ImportedConfig import_nemo(const std::string& file,
                                         const std::vector<std::string>& overrides);
/// A command line of Megatron-LM (pretrain_gpt.py and its like): a text file or a shell script, of
/// which the words of assignments and of the command are read.
[[nodiscard]] ImportedConfig import_megatron(const std::string& file);
/// A Hugging Face model's folder or config.json, and transformers' TrainingArguments as JSON next
/// to it (training_args.json) or named by `training_args` ("": none is needed).
[[nodiscard]] ImportedConfig import_hugging_face(const std::string& path,
                                                 const std::string& training_args);

/// "nxdt", "nemo", "megatron" or "hf", by what the file holds. Throws ConfigError when that is
/// unclear.
[[nodiscard]] std::string detect_source(const std::string& file);

}  // namespace trellis::analysis
