#include "trainer/loop/step_scalars.h"

#include <algorithm>

#include "trainer/config/logged_scalars.h"
#include "trainer/config/run_config.h"
#include "trainer/loop/step_result.h"

namespace trellis::trainer {
namespace {

/// Over all layers; imbalance is the worst layer's.
void add_routing(const RoutedTokens& layers, std::map<std::string, double>& scalars) {
  for (const auto& [layer, load] : layers) {
    scalars["routed_tokens"] += static_cast<double>(load.routed());
    scalars["dropped_tokens"] += static_cast<double>(load.dropped());
    double& worst = scalars["expert_imbalance"];
    worst = std::max(worst, load.imbalance());
  }
}

}  // namespace

std::map<std::string, double> scalars_of(const StepResult& result, const RunConfig& config) {
  std::map<std::string, double> scalars = {
      {"reduced_train_loss", result.loss}, {"lr", result.lr}, {"gradient_norm", result.grad_norm}};
  scalars["consumed_samples"] = static_cast<double>(result.consumed_samples);
  scalars["global_step"] = static_cast<double>(result.step);
  scalars.insert(result.metrics.begin(), result.metrics.end());
  if (result.parameter_norm) scalars["parameter_norm"] = *result.parameter_norm;
  if (result.val_loss) scalars["val_loss"] = *result.val_loss;
  if (!result.routed_tokens.empty()) add_routing(result.routed_tokens, scalars);
  if (result.tracked_grad_norm)
    scalars[tag_of_grad_norm(*config.trainer.track_grad_norm)] = *result.tracked_grad_norm;
  return scalars;
}

}  // namespace trellis::trainer
