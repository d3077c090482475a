#pragma once

#include <string>
#include <vector>

/// A configuration of this program for another one that will run it on hardware.
namespace trellis::analysis {

/// A key without counterpart in the other program.
struct LeftOut {
  std::string key, value, where;  ///< of the configuration; "file:12", "" for a default
  std::string why;
};

struct ExportedConfig {
  std::string text;  ///< what the other program reads
  std::vector<LeftOut> left_out;
};

/// NxDT's YAML: every key of NxDT's and NeMo's schemas with its value after overrides and
/// interpolation, also those that have no effect here. Keys that only this program has are left
/// out. Throws ConfigError (file:line) for a file that `trellis validate` refuses.
[[nodiscard]] ExportedConfig export_nxdt(const std::string& file,
                                         const std::vector<std::string>& overrides);

/// A script that runs Megatron-LM's pretrain_gpt.py: every argument that `trellis import` maps, of
/// the same table, with explicit values. What is written is imported again to see what is left out.
/// Throws as export_nxdt.
[[nodiscard]] ExportedConfig export_megatron(const std::string& file,
                                             const std::vector<std::string>& overrides);

/// TOML of torchtitan up to 0.2.2. Sizes of models are in torchtitan's code: one that it has no
/// flavor of is left out. The same otherwise.
[[nodiscard]] ExportedConfig export_torchtitan(const std::string& file,
                                               const std::vector<std::string>& overrides);
/// NeuronTrainingArguments of optimum-neuron as JSON; the model is a separate folder. The same
/// otherwise.
[[nodiscard]] ExportedConfig export_optimum_neuron(const std::string& file,
                                                   const std::vector<std::string>& overrides);

}  // namespace trellis::analysis
