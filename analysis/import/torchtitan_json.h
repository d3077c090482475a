#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/import/imported_config.h"

/// The configuration that torchtitan 0.3 writes as JSON (`--debug.save_config_file`), by the names
/// that 0.2.2 has. Source: torchtitan/trainer.py (Trainer.Config.to_dict) and
/// torchtitan/config/configs.py of 0.3.0.
namespace trellis::analysis {

/// A key of the file, and as 0.2.2 has it. One that only the decoder's sizes have is classified.
struct TorchtitanKey {
  SourceKey given;
  SourceKey key;
};

struct TorchtitanJson {
  std::vector<TorchtitanKey> keys;  ///< in the order of the file
  std::vector<ImportedKey> model;   ///< of model_spec
  std::vector<SourceKey> values;    ///< what rules read in addition
};

[[nodiscard]] bool is_torchtitan_json(const nlohmann::json& document);
/// Throws ConfigError (file) for what is no JSON.
[[nodiscard]] TorchtitanJson read_torchtitan_json(const std::string& text, const std::string& name);

/// The decoder of model_spec.model: its sizes become settings; parts that are not built here are
/// named. `where`: "file:line".
[[nodiscard]] std::vector<ImportedKey> torchtitan_decoder(const nlohmann::json& model,
                                                          const std::string& where);

/// 0.3 is configured by Python functions, which are not executed: whether the text is such a
/// program, or a script that starts torchtitan.
[[nodiscard]] bool starts_torchtitan(const std::string& text);
/// The command that writes a program's configuration into a file, for a message.
[[nodiscard]] std::string torchtitan_advice();

}  // namespace trellis::analysis
