#include "trainer/optimizer/make_update_rule.h"

#include "base/error.h"
#include "trainer/config/optimizer_table.h"
#include "trainer/optimizer/elementwise_rules.h"
#include "trainer/optimizer/layerwise_rules.h"
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <algorithm>

namespace trellis::trainer {

std::shared_ptr<const UpdateRule> make_update_rule(const OptimSection& optim) {
  Problems problems;
  for (const SectionProblem& problem : check_optimizer(optim))
    problems.add("model.optim." + problem.key, problem.text);
  problems.throw_if_any();
  const OptimSection whole = with_optimizer_defaults(optim);
  if (auto rule = make_elementwise_rule(whole)) return rule;
  return make_layerwise_rule(whole);
}

}  // namespace trellis::trainer
