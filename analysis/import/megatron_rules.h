#pragma once

#include <vector>

#include "analysis/import/megatron_args.h"

namespace trellis::analysis {

/// The result for an argument whose meaning depends on its value or on other arguments
/// (MegatronRow::Does::kRule).
[[nodiscard]] ImportedKey apply_megatron_rule(const MegatronArgument& argument,
                                              const MegatronArguments& all);
/// The rules of the run: batches, steps, the schedule, checkpoints, data. nullptr: none of them.
using MegatronRule = ImportedKey (*)(const MegatronArgument&, const MegatronArguments&);
[[nodiscard]] MegatronRule megatron_run_rule(std::string_view name);

/// Settings that a legal file needs, and Megatron-LM's defaults for missing arguments where this
/// program has another one.
[[nodiscard]] std::vector<Setting> megatron_defaults(const MegatronArguments& all);

/// Samples of a step: --global-batch-size, or a micro-batch for each data-parallel rank; nullopt
/// where the ranks are not known.
[[nodiscard]] std::optional<std::int64_t> megatron_global_batch(const MegatronArguments& all);

/// The schedule of the learning rate, in steps.
struct MegatronSchedule {
  std::string name;              ///< of this program
  std::vector<Setting> lengths;  ///< warmup_steps, constant_steps, hold_steps
  std::string refused = {};      ///< what about it is not supported; "": nothing
};
[[nodiscard]] MegatronSchedule megatron_schedule(const MegatronArguments& all);

// imported_config.h's, of an argument.
[[nodiscard]] ImportedKey ignored(const MegatronArgument& argument, std::string note);
[[nodiscard]] ImportedKey refused(const MegatronArgument& argument, std::string note);
[[nodiscard]] ImportedKey by_default(const MegatronArgument& argument, std::string note);
[[nodiscard]] ImportedKey mapped(const MegatronArgument& argument, std::vector<Setting> settings,
                                 std::string note = {});

}  // namespace trellis::analysis
