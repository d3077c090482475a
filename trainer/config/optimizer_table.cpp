#include "trainer/config/optimizer_table.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace trellis::trainer {
namespace {

OptimizerArgument flag(const char* name, bool value = false) {
  return {name, value ? 1.0 : 0.0, true, 0, 1};
}

void check_unit_interval(SectionProblems& problems, const char* key, double value) {
  if (!(value >= 0 && value < 1))
    problems.push_back({key, fmt::format("must be in [0, 1), got {}", value)});
}

void check_not_negative(SectionProblems& problems, const char* key, double value) {
  if (!(value >= 0)) problems.push_back({key, fmt::format("must not be negative, got {}", value)});
}

void check_argument(SectionProblems& problems, const OptimizerArgument& argument, double value) {
  if (value >= argument.lowest && value <= argument.highest &&
      (!argument.boolean || value == 0 || value == 1))
    return;
  const std::string upper = argument.highest < 1e300 ? fmt::format("{}", argument.highest) : "∞";
  problems.push_back(
      {argument.name, fmt::format("must be in [{}, {}], got {}", argument.lowest, upper, value)});
}

std::string names_of(const std::vector<OptimizerArgument>& arguments) {
  std::string text;
  for (const OptimizerArgument& argument : arguments)
    text += (text.empty() ? "" : ", ") + argument.name;
  return text.empty() ? "none" : text;
}

/// Checks rules that ranges of single arguments cannot express.
void check_combinations(SectionProblems& problems, const OptimSection& optim,
                        const std::map<std::string, double>& all) {
  if (optim.name == "sgd" && all.at("nesterov") != 0 &&
      (all.at("momentum") <= 0 || all.at("dampening") != 0)) {
    problems.push_back({"nesterov", "needs a momentum above 0 and a dampening of 0"});
  }
  if (optim.name == "rprop" &&
      !(all.at("etas_0") > 0 && all.at("etas_0") < 1 && all.at("etas_1") > 1)) {
    problems.push_back({"etas", fmt::format("expected 0 < etas[0] < 1 < etas[1], got [{}, {}]",
                                            all.at("etas_0"), all.at("etas_1"))});
  }
  if (optim.name == "rprop" && all.at("step_sizes_0") > all.at("step_sizes_1")) {
    problems.push_back({"step_sizes", "the smallest step must not exceed the largest"});
  }
  if (optim.name != "adafactor") return;
  if (all.at("relative_step") != 0 && optim.lr != 0) {
    problems.push_back({"relative_step",
                        "computes the learning rate by itself; remove model.optim.lr or set "
                        "relative_step to False"});
  }
  if (all.at("warmup_init") != 0 && all.at("relative_step") == 0)
    problems.push_back({"warmup_init", "needs relative_step: True"});
}

}  // namespace

const std::vector<OptimizerInfo>& optimizer_table() {
  static const std::vector<OptimizerInfo> table = {
      {"adamw", true, true, true, 0.9, 0.999, 1e-8, {flag("amsgrad"), flag("capturable")}},
      {"adamw_fp32OptState",
       true,
       true,
       true,
       0.9,
       0.999,
       1e-6,
       {flag("correct_bias", true), flag("capturable")}},
      {"adam", true, true, true, 0.9, 0.999, 1e-8, {flag("amsgrad"), flag("capturable")}},
      {"sgd",
       false,
       false,
       true,
       0,
       0,
       0,
       {{"momentum"}, {"dampening", 0, false, -1e300}, flag("nesterov")}},
      {"adadelta", false, true, true, 0, 0, 1e-6, {{"rho", 0.9, false, 0, 1}}},
      {"adamax", true, true, true, 0.9, 0.999, 1e-8, {}},
      {"adagrad", false, true, true, 0, 0, 1e-10, {{"lr_decay"}, {"initial_accumulator_value"}}},
      {"rmsprop", false, true, true, 0, 0, 1e-8, {{"alpha", 0.99}, {"momentum"}, flag("centered")}},
      {"rprop",
       false,
       false,
       false,
       0,
       0,
       0,
       {{"etas_0", 0.5}, {"etas_1", 1.2}, {"step_sizes_0", 1e-6}, {"step_sizes_1", 50}}},
      {"novograd",
       true,
       true,
       true,
       0.95,
       0.98,
       1e-8,
       {flag("grad_averaging"),
        flag("amsgrad"),
        flag("luc"),
        {"luc_trust", 1e-3},
        {"luc_eps", 1e-8}}},
      // beta1 below 0 represents None: no first moment.
      {"adafactor",
       false,
       false,
       true,
       0,
       0,
       0,
       {{"beta1", -1, false, -1, 1},
        {"eps_0", 1e-30},
        {"eps_1", 1e-3},
        {"clip_threshold", 1.0},
        {"decay_rate", 0.8},
        flag("scale_parameter", true),
        flag("relative_step"),
        flag("warmup_init"),
        {"min_step", 1e-2}}},
  };
  return table;
}

const OptimizerInfo* find_optimizer(const std::string& name) {
  for (const OptimizerInfo& info : optimizer_table()) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

OptimSection default_optim_section(const std::string& name) {
  OptimSection section;
  section.name = name;
  return with_optimizer_defaults(std::move(section));
}

OptimSection with_optimizer_defaults(OptimSection section) {
  const OptimizerInfo& info = *find_optimizer(section.name);
  if (!section.beta1) section.beta1 = info.beta1;
  if (!section.beta2) section.beta2 = info.beta2;
  if (!section.eps) section.eps = info.eps;
  return section;
}

std::map<std::string, double> optimizer_arguments(const OptimSection& optim) {
  std::map<std::string, double> all;
  for (const OptimizerArgument& argument : find_optimizer(optim.name)->arguments)
    all[argument.name] = argument.default_value;
  for (const auto& [name, value] : optim.arguments) all[name] = value;
  return all;
}

std::vector<SectionProblem> check_optimizer(const OptimSection& optim) {
  const OptimizerInfo* info = find_optimizer(optim.name);
  if (info == nullptr) {
    std::string names;
    for (const OptimizerInfo& known : optimizer_table())
      names += (names.empty() ? "" : ", ") + known.name;
    return {
        {"name", fmt::format("unknown optimizer `{}`; expected one of: {}", optim.name, names)}};
  }
  SectionProblems problems;
  check_not_negative(problems, "lr", optim.lr);
  check_not_negative(problems, "weight_decay", optim.weight_decay);
  if (!info->has_weight_decay && optim.weight_decay != 0) {
    problems.push_back(
        {"weight_decay", fmt::format("{} has none; remove it or set it to 0", optim.name)});
  }
  if (info->has_betas) {
    for (const double beta : {optim.beta1.value_or(info->beta1), optim.beta2.value_or(info->beta2)})
      check_unit_interval(problems, "betas", beta);
  }
  if (info->has_eps) check_not_negative(problems, "eps", optim.eps.value_or(info->eps));
  for (const auto& [name, value] : optim.arguments) {
    const auto known = std::ranges::find(info->arguments, name, &OptimizerArgument::name);
    if (known == info->arguments.end()) {
      problems.push_back({name, fmt::format("is no argument of {}; its own arguments: {}",
                                            optim.name, names_of(info->arguments))});
    } else {
      check_argument(problems, *known, value);
    }
  }
  check_combinations(problems, optim, optimizer_arguments(optim));
  return problems;
}

}  // namespace trellis::trainer
