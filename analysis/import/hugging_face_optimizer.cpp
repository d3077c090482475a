#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "analysis/import/hugging_face_parts.h"

namespace trellis::analysis::hugging_face {
namespace {

using nlohmann::json;

constexpr const char* kSched = "model.optim.sched.";

Setting sched(const std::string& key, const std::string& value) { return {kSched + key, value}; }

/// The entries of lr_scheduler_kwargs; each that is read is crossed off.
class Kwargs {
 public:
  explicit Kwargs(const json* value) {
    if (value != nullptr && value->is_object()) left_ = *value;
    if (value != nullptr && value->is_string() && !value->get_ref<const std::string&>().empty())
      problem_ = "expected an object, not a text";
    if (value != nullptr && !value->is_object() && !value->is_string())
      problem_ = "expected an object";
  }
  std::optional<double> number(const char* name) {
    const auto found = left_.find(name);
    if (found == left_.end()) return std::nullopt;
    if (!found->is_number() && !found->is_null()) return std::nullopt;  // stays, and is reported
    const std::optional<double> value =
        found->is_null() ? std::nullopt : std::optional(found->get<double>());
    left_.erase(found);
    return value;
  }
  std::string text(const char* name, const std::string& otherwise) {
    const auto found = left_.find(name);
    if (found == left_.end() || !found->is_string()) return otherwise;
    std::string value = found->get<std::string>();
    left_.erase(found);
    return value;
  }
  [[nodiscard]] std::string problem(const std::string& type) const {
    if (!problem_.empty() || left_.empty()) return problem_;
    return fmt::format("`{}` of the schedule {} has no equivalent; remove it", left_.begin().key(),
                       type);
  }

 private:
  json left_ = json::object();
  std::string problem_;
};

struct Reading {
  const Arguments& args;
  std::int64_t max_steps;
  std::string type;
  Kwargs kwargs;
  double lr;
  double warmup_steps;  ///< −1: not known before the run
  Schedule result = {};

  void name(const char* ours) { result.type.push_back(sched("name", ours)); }
  void kwarg(const char* ours, double value) {
    result.kwargs.push_back(sched(ours, yaml_number(value)));
  }
};

void cosine(Reading& r) {
  r.name("CosineAnnealing");
  const double half = r.kwargs.number("num_cycles").value_or(0.5);
  if (half != 0.5) r.result.kwargs_problem = "only half a wave (num_cycles 0.5) is supported";
  const auto floor = r.kwargs.number("min_lr"), rate = r.kwargs.number("min_lr_rate");
  if (floor || rate) r.kwarg("min_lr", floor ? *floor : *rate * r.lr);
  if (!floor && !rate && r.type == "cosine_with_min_lr")
    r.result.problem = "needs min_lr or min_lr_rate in lr_scheduler_kwargs";
}

void restarts(Reading& r) {
  r.name("CosineAnnealing");
  if (r.kwargs.number("num_cycles").value_or(1) != 1)
    r.result.kwargs_problem = "restarts are not supported; set num_cycles to 1";
}

void polynomial(Reading& r) {
  r.name("PolynomialDecayAnnealing");
  // transformers' default lr_end is not 0.
  const auto end = r.kwargs.number("lr_end"), power = r.kwargs.number("power");
  if (end) {
    r.kwarg("min_lr", *end);
  } else {
    r.result.type.push_back(sched("min_lr", "1e-07"));
  }
  if (power) r.kwarg("power", *power);
}

void inverse_square_root(Reading& r) {
  r.name("InverseSquareRootAnnealing");
  if (r.warmup_steps == 0)
    r.result.problem =
        "without warm-up transformers assumes 10000 steps of it as time scale, which has no "
        "equivalent; set warmup_steps";
  const auto scale = r.kwargs.number("timescale");
  if (scale && *scale != r.warmup_steps)
    r.result.kwargs_problem = "a timescale other than warmup_steps has no equivalent";
}

void plateau(Reading& r) {
  r.name("ReduceLROnPlateau");
  r.result.note = "the rate follows the validation loss once per epoch";
  r.result.warmup_ignored = "transformers' reduce_lr_on_plateau has no warm-up";
  for (const char* number : {"factor", "patience", "threshold", "cooldown", "min_lr", "eps"}) {
    if (const auto value = r.kwargs.number(number)) r.kwarg(number, *value);
  }
  for (const char* word : {"mode", "threshold_mode"}) {
    const std::string value = r.kwargs.text(word, "");
    if (!value.empty()) r.result.kwargs.push_back(sched(word, yaml_text(value)));
  }
}

/// Warm-up, a constant part, and a decay at the end of the run.
void stable_decay(Reading& r) {
  const std::string decay = r.kwargs.text("decay_type", "cosine");
  if (decay != "linear" && decay != "1-sqrt") {
    r.result.problem = fmt::format(
        "a hold with a decay of type {} is not supported; set decay_type to linear or 1-sqrt",
        decay);
    return;
  }
  if (r.kwargs.text("warmup_type", "linear") != "linear")
    r.result.kwargs_problem = "only a linear warm-up is supported";
  const auto stable = r.kwargs.number("num_stable_steps"),
             last = r.kwargs.number("num_decay_steps");
  const auto floor = r.kwargs.number("min_lr_ratio");
  r.kwargs.number("num_cycles");  // of a cosine
  r.name(decay == "linear" ? "WarmupHoldAnnealLinear" : "WarmupHoldAnnealOneMinusSquareRoot");
  const double steps = static_cast<double>(r.max_steps);
  const double hold = last ? steps - r.warmup_steps - *last : stable.value_or(-1);
  if (r.max_steps < 1 || r.warmup_steps < 0 || hold < 0) {
    r.result.problem = "needs max_steps, and num_decay_steps that leave place for the other parts";
    return;
  }
  if (last && stable && *stable != hold)
    r.result.kwargs_problem =
        "the decay ends with the run: warmup_steps + num_stable_steps + "
        "num_decay_steps must be max_steps";
  r.kwarg("hold_steps", std::floor(hold));
  if (floor && *floor > 0) r.kwarg("min_lr", *floor * r.lr);
}

void read_type(Reading& r) {
  if (r.type == "linear") return r.name("LinearAnnealingWithWarmUp");
  if (r.type == "cosine" || r.type == "cosine_with_min_lr") return cosine(r);
  if (r.type == "cosine_with_restarts") return restarts(r);
  if (r.type == "polynomial") return polynomial(r);
  if (r.type == "constant_with_warmup") return r.name("WarmupPolicy");
  if (r.type == "inverse_sqrt") return inverse_square_root(r);
  if (r.type == "reduce_lr_on_plateau") return plateau(r);
  if (r.type == "warmup_stable_decay") return stable_decay(r);
  if (r.type == "constant") {
    r.result.note = "without section model.optim.sched the rate is constant";
    r.result.warmup_ignored = "the schedule `constant` has no warm-up";
    return;
  }
  r.result.problem = fmt::format(
      "there is no schedule `{}`; linear, cosine, cosine_with_min_lr, polynomial, constant, "
      "constant_with_warmup, inverse_sqrt, reduce_lr_on_plateau and warmup_stable_decay are "
      "supported",
      r.type);
}

/// A number below 1 is a part of all steps; steps win over warmup_ratio.
double read_warmup(const Arguments& args, std::int64_t max_steps, std::vector<Setting>& settings) {
  const double given = args.number("warmup_steps").value_or(0);
  const double ratio = given > 0 && given < 1 ? given
                       : given > 0            ? 0
                                              : args.number("warmup_ratio").value_or(0);
  if (ratio <= 0) {
    if (given > 0) settings.push_back(sched("warmup_steps", yaml_number(std::floor(given))));
    return std::max(0.0, std::floor(given));
  }
  if (max_steps < 1) {
    settings.push_back(sched("warmup_ratio", yaml_number(ratio)));
    return -1;
  }
  // transformers rounds up where a ratio here rounds down.
  const double steps = std::ceil(static_cast<double>(max_steps) * ratio);
  settings.push_back(sched("warmup_steps", yaml_number(steps)));
  return steps;
}

}  // namespace

Schedule schedule_of(const Arguments& args, std::int64_t max_steps) {
  Reading reading{args,
                  max_steps,
                  args.text("lr_scheduler_type").value_or("linear"),
                  Kwargs(args.find("lr_scheduler_kwargs")),
                  args.number("learning_rate").value_or(5e-5),
                  0};
  std::vector<Setting> warmup;
  reading.warmup_steps = read_warmup(args, max_steps, warmup);
  read_type(reading);
  Schedule result = std::move(reading.result);
  if (result.warmup_ignored.empty()) result.warmup = std::move(warmup);
  if (result.kwargs_problem.empty()) result.kwargs_problem = reading.kwargs.problem(reading.type);
  if (!result.problem.empty()) {
    result.type.clear(), result.kwargs.clear(), result.warmup.clear();
    result.warmup_ignored = "lr_scheduler_type is not supported";
    result.kwargs_problem = result.warmup_ignored;
  }
  if (!result.type.empty() && max_steps < 1 && reading.type != "reduce_lr_on_plateau")
    result.note =
        "a schedule needs its length: set trainer.max_steps to epochs × samples / "
        "data.global_batch_size, or the rate stays constant";
  const bool other_warmup =
      !result.type.empty() && !result.warmup.empty() && reading.type != "linear";
  if (result.note.empty() && other_warmup)
    result.note = "step t of the W steps of warm-up has (t + 1) / (W + 1) of the rate, not t / W";
  return result;
}

Optimizer optimizer_of(const Arguments& args) {
  const std::string type = args.text("optim").value_or("adamw_torch_fused");
  const auto named = [](const char* name, bool has_betas, bool has_eps) {
    return Optimizer{{{"model.optim.name", name}}, has_betas, has_eps, ""};
  };
  for (const char* torch : {"adamw_torch", "adamw_torch_fused", "adamw_torch_xla",
                            "adamw_torch_npu_fused", "adamw_apex_fused"}) {
    if (type == torch) return named("adamw", true, true);
  }
  // transformers' own, which NxD's has the formula of.
  if (type == "adamw_hf") return named("adamw_fp32OptState", true, true);
  if (type == "adafactor") {
    Optimizer result = named("adafactor", false, false);
    // As the Trainer sets them.
    result.settings.push_back({"model.optim.scale_parameter", "false"});
    result.settings.push_back({"model.optim.relative_step", "false"});
    return result;
  }
  for (const char* same : {"sgd", "adagrad", "rmsprop"}) {
    if (type == same) return named(same, false, false);
  }
  return {{},
          true,
          true,
          fmt::format("there is no optimizer `{}`: adamw_torch, adamw_torch_fused, adamw_hf, "
                      "adafactor, sgd, adagrad and rmsprop are supported",
                      type)};
}

}  // namespace trellis::analysis::hugging_face
