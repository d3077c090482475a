#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace trellis::analysis {

/// How a key of torchtitan's TOML is imported. Source: torchtitan/config/job_config.py of version
/// 0.2.2, the last that reads TOML.
struct TorchtitanRow {
  enum class Does {
    kMoves,    ///< to `target`, with its value
    kIgnored,  ///< any value; `note` says why
    kNeutral,  ///< unsupported, except for the values `target`, separated by '|'; `note`: advice
    kRule      ///< torchtitan.cpp decides, with the values of other keys
  };
  enum class Type { kInteger, kFloat, kText, kBoolean };
  std::string_view keys;  ///< dotted, separated by spaces
  Does does = Does::kRule;
  std::string_view target = {};
  std::string_view note = {};
  Type type = Type::kInteger;  ///< kMoves: what torchtitan expects
};

[[nodiscard]] std::span<const TorchtitanRow> torchtitan_rows();
/// null: torchtitan has no such key.
[[nodiscard]] const TorchtitanRow* torchtitan_row(std::string_view key);

/// The name that 0.2.2 has for a key of a version from 2024 to 0.3; the key itself when it has no
/// other. Source: torchtitan/config_manager.py of those versions, torchtitan/trainer.py of 0.3.0.
[[nodiscard]] std::string torchtitan_name(std::string_view key);
/// Keys that 0.2.2 no longer has, and those that it does not have yet.
[[nodiscard]] std::span<const TorchtitanRow> torchtitan_old_rows();
[[nodiscard]] std::span<const TorchtitanRow> torchtitan_new_rows();

/// Sizes of a flavor of torchtitan's llama3. Source: torchtitan/models/llama3/__init__.py.
struct TorchtitanFlavor {
  std::string_view name;
  int layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocabulary = 0;
};
[[nodiscard]] std::span<const TorchtitanFlavor> torchtitan_flavors();

}  // namespace trellis::analysis
