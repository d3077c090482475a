#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/export/resolved_settings.h"

namespace trellis::analysis {

/// The other direction of the import's rules (megatron_rules.h): what the rows that a rule decides
/// are written as. Their names, and those of the rows that move, are in one table:
/// megatron_table.h.

/// Values of an argument; empty: a flag. nullopt: it is not written.
using MegatronValues = std::optional<std::vector<std::string>>;

struct MegatronWord {
  MegatronValues (*values)(
      const ResolvedSettings& settings);  ///< null: another spelling is written
  std::string_view keys;                  ///< that it decides when it is read; separated by spaces
};

/// The word of a row that a rule decides. Null: there is none; every such row has one.
[[nodiscard]] const MegatronWord* megatron_word(std::string_view name);
/// The row that decides `key`, among those of rules.
[[nodiscard]] bool megatron_word_decides(std::string_view key);
/// True if a row that moves is written: its key has an effect in this configuration.
[[nodiscard]] bool megatron_moves(std::string_view name, const ResolvedSettings& settings);

/// The value that Megatron-LM needs where its key has no value here; "": none.
[[nodiscard]] std::string megatron_needs(std::string_view name);

}  // namespace trellis::analysis
