#pragma once

#include <map>
#include <string>
#include <vector>

#include "trainer/config/optimizer_table.h"
#include "trainer/optimizer/make_update_rule.h"
#include "trainer/optimizer/optimizer_options.h"

namespace trellis::trainer::testing_support {

/// An optimizer with arguments; tests/trainer/optimizer/oracle.py has the same.
struct RuleCase {
  std::string name;  ///< optimizer/variant, as in oracle.py
  std::map<std::string, double> arguments;
  double lr = 0.01, weight_decay = 0.1, beta2 = 0;
};

inline const std::vector<RuleCase> kRuleCases = {
    {"adamw", {}, 0.01, 0.1, 0.95},
    {"adamw/amsgrad", {{"amsgrad", 1}}},
    {"adamw_fp32OptState", {}},
    {"adam", {}},
    {"adam/amsgrad", {{"amsgrad", 1}}},
    {"sgd", {}},
    {"sgd/momentum", {{"momentum", 0.9}, {"dampening", 0.3}}},
    {"sgd/nesterov", {{"momentum", 0.9}, {"nesterov", 1}}},
    {"adadelta", {}},
    {"adamax", {}},
    {"adagrad", {}},
    {"adagrad/decay", {{"lr_decay", 0.1}, {"initial_accumulator_value", 0.2}}},
    {"rmsprop", {}},
    {"rmsprop/centered", {{"centered", 1}}},
    {"rmsprop/momentum", {{"centered", 1}, {"momentum", 0.7}, {"alpha", 0.9}}},
    {"rprop", {}, 0.01, 0},
    {"novograd", {}},
    {"novograd/amsgrad", {{"grad_averaging", 1}, {"amsgrad", 1}}},
    {"novograd/luc", {{"luc", 1}}},
    {"adafactor", {}},
    {"adafactor/beta1", {{"beta1", 0.9}, {"scale_parameter", 0}}},
    {"adafactor/relative", {{"relative_step", 1}}, 0},
    {"adafactor/warmup_init", {{"relative_step", 1}, {"warmup_init", 1}}, 0},
};

inline OptimSection section_of(const RuleCase& one) {
  OptimSection section;  // what it does not say is the optimizer's own default
  section.name = one.name.substr(0, one.name.find('/'));
  section.lr = one.lr;
  section.weight_decay = one.weight_decay;
  section.arguments = one.arguments;
  if (one.beta2 > 0) section.beta2 = one.beta2;
  return section;
}

inline OptimizerOptions options_of(const RuleCase& one) {
  OptimizerOptions options;
  options.rule = make_update_rule(section_of(one));
  options.weight_decay = one.weight_decay;
  options.grad_dtype = options.master_dtype = at::kDouble;
  return options;
}

}  // namespace trellis::trainer::testing_support
