#pragma once

#include <map>
#include <string>
#include <vector>

#include "trainer/config/model_section.h"

namespace trellis::trainer {

/// Legal values of one argument of `model.optim`. Lists are spelt name_0, name_1; booleans are 0
/// and 1.
struct OptimizerArgument {
  std::string name;
  double default_value = 0;
  bool boolean = false;
  double lowest = 0;       ///< smallest legal value
  double highest = 1e300;  ///< largest legal value
};

/// One optimizer of NeMo's with its defaults; the source is NeMo's optimizer configurations
/// (nxdt-features §1.10).
struct OptimizerInfo {
  std::string name;
  bool has_betas = false, has_eps = false, has_weight_decay = true;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  std::vector<OptimizerArgument> arguments;  ///< those that are not fields of OptimSection
};

/// All optimizers, in the order of the documentation.
[[nodiscard]] const std::vector<OptimizerInfo>& optimizer_table();
/// Null when there is none of this name.
[[nodiscard]] const OptimizerInfo* find_optimizer(const std::string& name);

/// A section with every default of the optimizer `name`; the caller then overwrites what the file
/// says. REQUIRES: the name is in the table.
[[nodiscard]] OptimSection default_optim_section(const std::string& name);
/// The same section with the optimizer's own defaults where it says nothing. REQUIRES: as above.
[[nodiscard]] OptimSection with_optimizer_defaults(OptimSection section);
/// Every argument that is not a field of OptimSection: the written value or the default.
[[nodiscard]] std::map<std::string, double> optimizer_arguments(const OptimSection& optim);

/// A rule that a section breaks: the key below `model.optim`, and what is wrong with it.
struct SectionProblem {
  std::string key;
  std::string text;
};
using SectionProblems = std::vector<SectionProblem>;
/// Every rule that the arguments break; empty: legal.
[[nodiscard]] SectionProblems check_optimizer(const OptimSection& optim);

}  // namespace trellis::trainer
