#include <fmt/format.h>

#include "trainer/config/sections.h"

namespace trellis::trainer {
namespace {

void read_betas(SectionReader& reader, OptimSection& section) {
  const auto betas = reader.optional<std::vector<double>>("betas");
  if (!betas) return;
  if (betas->size() != 2) {
    return reader.problem("betas", fmt::format("expected two numbers such as [0.9, 0.95], got {}", betas->size()));
  }
  for (const double beta : *betas) {
    if (beta < 0 || beta >= 1) return reader.problem("betas", fmt::format("each must be in [0, 1), got {}", beta));
  }
  section.beta1 = betas->front();
  section.beta2 = betas->back();
}

/// "<what>_steps", or "<what>_ratio" of the run's steps; NeMo takes only one of them.
std::int64_t read_steps(SectionReader& reader, const std::string& what, std::int64_t max_steps) {
  const std::string steps_key = what + "_steps", ratio_key = what + "_ratio";
  const std::int64_t steps = reader.non_negative(steps_key, std::int64_t{0});
  const auto ratio = reader.optional<double>(ratio_key);
  if (!ratio) return steps;
  if (*ratio < 0 || *ratio > 1) {
    reader.problem(ratio_key, fmt::format("must be in [0, 1], got {}", *ratio));
    return 0;
  }
  if (steps > 0) reader.problem(ratio_key, fmt::format("excludes {}; remove one of them", steps_key));
  return static_cast<std::int64_t>(*ratio * static_cast<double>(max_steps));
}

SchedSection read_sched(SectionReader& reader, double lr, std::int64_t max_steps) {
  SchedSection section;
  section.name = reader.one_of(
      "name", section.name, {"CosineAnnealing", "LinearAnnealingWithWarmUp"},
      {"WarmupPolicy", "WarmupHoldPolicy", "SquareAnnealing", "SquareRootAnnealing", "NoamAnnealing", "NoamHoldAnnealing",
       "WarmupAnnealing", "InverseSquareRootAnnealing", "T5InverseSquareRootAnnealing", "PolynomialDecayAnnealing",
       "PolynomialHoldDecayAnnealing", "WarmupHoldAnnealLinear", "WarmupHoldAnnealOneMinusSquareRoot", "StepLR", "ExponentialLR",
       "ReduceLROnPlateau", "CyclicLR"});
  section.warmup_steps = read_steps(reader, "warmup", max_steps);
  section.constant_steps = read_steps(reader, "constant", max_steps);
  section.min_lr = reader.non_negative("min_lr", section.min_lr);
  if (section.name == "LinearAnnealingWithWarmUp" && section.constant_steps > 0) {
    reader.problem("constant_steps", "LinearAnnealingWithWarmUp has no constant tail; remove it or set it to 0");
  }
  if (section.name == "LinearAnnealingWithWarmUp" && section.min_lr > 0) {
    reader.problem("min_lr", "LinearAnnealingWithWarmUp falls to 0; remove it or set it to 0");
  }
  if (lr > 0 && section.min_lr > lr) {
    reader.problem("min_lr", fmt::format("must not exceed model.optim.lr: {} > {}", section.min_lr, lr));
  }
  return section;
}

}  // namespace

OptimSection read_optim(SectionReader& reader, std::int64_t max_steps) {
  OptimSection section;
  section.name = reader.one_of("name", section.name, {"adamw"},
                               {"adamw_fp32OptState", "sgd", "adam", "adadelta", "adamax", "adagrad", "rmsprop", "rprop", "novograd",
                                "adafactor", "distributed_fused_adam"});
  section.lr = reader.required<double>("lr");
  if (reader.good({"lr"}) && section.lr <= 0) reader.problem("lr", fmt::format("must be greater than 0, got {}", section.lr));
  section.weight_decay = reader.non_negative("weight_decay", section.weight_decay);
  read_betas(reader, section);
  section.eps = reader.non_negative("eps", section.eps);
  if (reader.has("sched")) {
    SectionReader sched = reader.section("sched");
    if (sched.has("name")) {
      section.sched = read_sched(sched, section.lr, max_steps);
    } else if (!sched.empty()) {
      sched.problem("name", "this key is required and missing; expected CosineAnnealing or LinearAnnealingWithWarmUp");
    }
  }
  return section;
}

}  // namespace trellis::trainer
