#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/import/imported_config.h"
#include "analysis/import/shell_words.h"

namespace trellis::analysis {

/// A configuration of Megatron-LM's functional tests (tests/functional_tests/test_cases): its
/// mapping MODEL_ARGS as one command.
struct MegatronYaml {
  ShellScript script;
  std::vector<ImportedKey> others;  ///< what else the file holds
};

/// none: `text` is no YAML with MODEL_ARGS. Throws ConfigError (file:line:key) for a value that no
/// argument can have.
[[nodiscard]] std::optional<MegatronYaml> read_megatron_yaml(const std::string& text,
                                                             const std::string& file);

}  // namespace trellis::analysis
