#include "trainer/config/logged_scalars.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace trellis::trainer {

std::vector<std::string> preference_tags(const ModelSection& model) {
  if (!model.dpo && !model.orpo) return {};
  std::vector<std::string> tags = {"rewards/chosen",  "rewards/rejected", "rewards/accuracies",
                                   "rewards/margins", "logps/chosen",     "logps/rejected"};
  if (model.orpo)
    for (const char* tag : {"nll_loss", "log_odds_ratio", "log_odds_chosen"})
      tags.emplace_back(tag);
  return tags;
}

std::vector<std::string> logged_scalars(const RunConfig& config) {
  std::vector<std::string> tags = {"consumed_samples",   "global_step",  "gradient_norm", "lr",
                                   "reduced_train_loss", "throughput",   "val_loss",      "mfu",
                                   "throughput_peak",    "step_time_ms", "tokens_per_s"};
  for (std::string& tag : preference_tags(config.model)) tags.push_back(std::move(tag));
  if (config.exp_manager.log_parameter_norm) tags.emplace_back("parameter_norm");
  const std::optional<double>& norm_type = config.trainer.track_grad_norm;
  if (norm_type) tags.push_back(tag_of_grad_norm(*norm_type));
  if (config.exp_manager.log_step_timing) {
    tags.emplace_back("train_backward_timing");
    tags.emplace_back("train_step_timing");
    tags.emplace_back("validation_step_timing");
  }
  std::ranges::sort(tags);
  return tags;
}

std::string tag_of_grad_norm(double norm_type) {
  if (std::isinf(norm_type)) return "grad_inf_norm_total";
  const std::string point = norm_type == std::floor(norm_type) ? ".0" : "";
  return fmt::format("grad_{}{}_norm_total", norm_type, point);
}

bool is_of_validation(const std::string& tag) {
  return tag == "val_loss" || tag == "validation_step_timing";
}

}  // namespace trellis::trainer
