#pragma once

#include <span>
#include <string_view>

namespace trellis::analysis {

/// How an argument of Megatron-LM is imported. Source: the parser of Megatron-LM as of August 2026
/// (megatron/training/arguments.py and the dataclasses it makes arguments of), and names of older
/// versions.
struct MegatronRow {
  enum class Values {
    kNone,  ///< a flag
    kOne,
    kList  ///< up to the next argument; also where versions differ
  };
  enum class Does {
    kMoves,    ///< to `target`, with its value or the value `note`
    kIgnored,  ///< any value; `note` says why
    kRefused,  ///< unsupported, except for the values `target`, separated by '|'; `note`: advice
    kRule      ///< megatron_rules.h decides, with the values of other arguments
  };
  Values values;
  std::string_view names;  ///< without the dashes, with '-'; separated by spaces
  Does does = Does::kRule;
  std::string_view target = {};
  std::string_view note = {};
};

/// Rows of arguments that decide keys of the result.
[[nodiscard]] std::span<const MegatronRow> megatron_mapped_rows();
/// Rows of arguments without effect here.
[[nodiscard]] std::span<const MegatronRow> megatron_ignored_rows();
/// Rows of arguments that ask for what is not supported.
[[nodiscard]] std::span<const MegatronRow> megatron_refused_rows();
/// Rows of arguments of torchrun and of others that start the script.
[[nodiscard]] std::span<const MegatronRow> launcher_rows();

}  // namespace trellis::analysis
