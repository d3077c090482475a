#include "trainer/loop/built_model.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/number_text.h"
#include "trainer/config/load/run_plan.h"
#include "trainer/models/factory.h"

namespace trellis::trainer {
namespace {

struct Share {
  std::int64_t layers = 0, parameters = 0;
  bool operator==(const Share&) const = default;
};

Share planned(const RunConfig& config, int pipeline_rank) {
  Share share;
  for (const StagePlan& stage : plan_stages(config)) {
    if (stage.pipeline_rank != pipeline_rank) continue;
    share.layers += stage.end_layer - stage.first_layer;
    share.parameters += stage.parameters_per_rank;
  }
  return share;
}

Share built(const RunConfig& config, const ParameterList& parameters) {
  Share share;
  for (const std::string& layer : layer_names(config.model)) {
    const std::string prefix = layer + ".";
    share.layers += std::ranges::any_of(
        parameters, [&](const Parameter& parameter) { return parameter.name.starts_with(prefix); });
  }
  for (const Parameter& parameter : parameters) share.parameters += parameter.tensor.numel();
  return share;
}

}  // namespace

std::string check_built(const RunConfig& config, const ParallelState& parallel,
                        const ParameterList& parameters) {
  const int pipeline_rank = parallel.get_pipeline_model_parallel_rank();
  const Share have = built(config, parameters), want = planned(config, pipeline_rank);
  if (have != want) {
    throw Error(ExitCode::kInternal,
                fmt::format("pipeline rank {} has built another model than was planned: expected "
                            "{} layers and {} parameters, got {} and {}: report this, with the "
                            "configuration",
                            pipeline_rank, want.layers, thousands(want.parameters), have.layers,
                            thousands(have.parameters)));
  }
  return fmt::format("{} of {} layers, {} parameters in {} tensors", have.layers,
                     config.model.num_layers, thousands(have.parameters), parameters.size());
}

}  // namespace trellis::trainer
