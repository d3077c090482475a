#include "trainer/config/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include <fmt/format.h>

#include "base/error.h"

namespace trellis::trainer {
namespace {

/// Inputs of a formula, all as double.
struct At {
  double b, t, w, m, c, h, p;
  std::map<std::string, double> arguments;
};

/// Done part of a phase from `begin` to `end`; a phase of no length is over.
double part(double t, double begin, double end) {
  return end > begin ? std::clamp((t - begin) / (end - begin), 0.0, 1.0) : 1.0;
}

double half_cosine(double high, double low, double done) {
  return low + (high - low) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

double cosine_with_tail(const At& at) {
  const double decay_steps = at.m - at.c - at.w;
  if (at.w > 0 && at.t <= at.w) return at.b * at.t / at.w;
  if (at.t > at.w + decay_steps || decay_steps <= 0) return at.p;
  return half_cosine(at.b, at.p, (at.t - at.w) / decay_steps);
}

double linear_with_warmup(const At& at) {
  if (at.t < at.w) return at.b * at.t / std::max(1.0, at.w);
  return at.b * std::max(0.0, (at.m - at.t) / std::max(1.0, at.m - at.w));
}

double noam(const At& at) {
  const double t = std::max(1.0, at.t), scale = at.b / std::sqrt(at.arguments.at("d_model"));
  const double lr =
      scale * (at.w > 0 ? std::min(1 / std::sqrt(t), t * std::pow(at.w, -1.5)) : 1 / std::sqrt(t));
  return t > at.w ? std::max(lr, at.p) : lr;
}

double noam_hold(const At& at) {
  const double rate = at.arguments.at("decay_rate"), hold = at.h - at.w;
  return std::max(at.p, at.b * std::max(1.0, std::pow(at.w, rate)) /
                            std::max(1.0, std::pow(std::max(0.0, at.t - hold), rate)));
}

double t5_inverse_square_root(const At& at) {
  if (at.t <= at.c) return 1 / std::sqrt(std::max(1.0, at.c));
  return at.t > at.m ? at.p : 1 / std::sqrt(at.t);
}

/// `cycle`: the period ends at the next multiple of its length instead of once.
double polynomial(const At& at, double begin) {
  const double done = std::max(0.0, at.t - begin), length = std::max(1.0, at.m - begin);
  const double periods = at.arguments.at("cycle") != 0 && done > 0 ? std::ceil(done / length) : 1;
  const double progress = std::min(1.0, done / (length * periods));
  return at.p + (at.b - at.p) * std::pow(1 - progress, at.arguments.at("power"));
}

/// torch.optim.lr_scheduler.CyclicLR: a triangle wave whose height is scaled per cycle or per step.
double cyclic(const At& at) {
  const auto& args = at.arguments;
  const double up = args.at("step_size_up"),
               down = args.at("step_size_down") > 0 ? args.at("step_size_down") : up;
  const double cycle = std::floor(1 + at.t / (up + down)), x = 1 + at.t / (up + down) - cycle,
               ratio = up / (up + down);
  const double height = x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
  const double scale_mode = args.at("mode") == 2 ? 1 : args.at("scale_mode");
  const double scale_at = scale_mode == 0 ? cycle : at.t;
  const double scale = args.at("mode") == 0   ? 1
                       : args.at("mode") == 1 ? 1 / std::pow(2, cycle - 1)
                                              : std::pow(args.at("gamma"), scale_at);
  return args.at("base_lr") + (args.at("max_lr") - args.at("base_lr")) * height * scale;
}

using Formula = std::function<double(const At&)>;

/// The shape that most of NeMo's policies share.
Formula warmup_then(Formula formula, bool holds = false) {
  return [formula = std::move(formula), holds](const At& at) {
    if (at.w > 0 && at.t <= at.w) return at.b * (at.t + 1) / (at.w + 1);
    if (holds && at.t < at.h) return at.b;
    return at.t > at.m ? at.p : formula(at);
  };
}

double square(double x) { return x * x; }

struct Schedule {
  Formula formula;
  std::vector<OptimizerArgument> arguments = {};
  bool constant_tail = false, holds = false, warms_up = true;
};

using Table = std::vector<std::pair<std::string, Schedule>>;

Table warmup_schedules() {
  return {
      {"LinearAnnealingWithWarmUp", {linear_with_warmup}},
      {"WarmupPolicy", {warmup_then([](const At& at) { return at.b; })}},
      {"WarmupHoldPolicy", {warmup_then([](const At& at) { return at.b; }, true), {}, false, true}},
      {"CosineAnnealing",
       {[cosine = warmup_then([](const At& at) {
           return half_cosine(at.b, at.p, part(at.t, at.w, at.m));
         })](const At& at) { return at.c > 0 ? cosine_with_tail(at) : cosine(at); },
        {},
        true}},
      {"SquareAnnealing", {warmup_then([](const At& at) {
         return std::max(at.p, at.b * square(1 - part(at.t, at.w, at.m)));
       })}},
      {"SquareRootAnnealing", {warmup_then([](const At& at) {
         return std::max(at.p, at.b * std::sqrt(1 - part(at.t, 0, at.m)));
       })}},
      {"NoamAnnealing", {noam, {{"d_model", 0}}}},
      {"NoamHoldAnnealing", {warmup_then(noam_hold, true), {{"decay_rate", 0.5}}, false, true}},
      {"WarmupAnnealing", {warmup_then([](const At& at) {
         return at.p + (at.b - at.p) * (1 - part(at.t, at.w, at.m));
       })}},
      {"InverseSquareRootAnnealing",
       {warmup_then([](const At& at) { return at.b / std::sqrt((at.t + 1) / (at.w + 1)); })}},
      {"T5InverseSquareRootAnnealing", {t5_inverse_square_root, {}, true, false, false}},
      {"PolynomialDecayAnnealing",
       {warmup_then([](const At& at) { return polynomial(at, at.w); }),
        {{"power", 1}, {"cycle", 0, true, 0, 1}}}},
      {"PolynomialHoldDecayAnnealing",
       {warmup_then([](const At& at) { return polynomial(at, at.h); }, true),
        {{"power", 1}, {"cycle", 0, true, 0, 1}},
        false,
        true}},
      {"WarmupHoldAnnealLinear",
       {warmup_then(
            [](const At& at) { return at.p + (at.b - at.p) * (1 - part(at.t, at.h, at.m)); }, true),
        {},
        false,
        true}},
      {"WarmupHoldAnnealOneMinusSquareRoot",
       {warmup_then(
            [](const At& at) {
              return at.p + (at.b - at.p) * (1 - std::sqrt(part(at.t, at.h, at.m)));
            },
            true),
        {},
        false,
        true}},
  };
}

Table torch_schedules() {
  Schedule step_lr{[](const At& at) {
                     return at.b * std::pow(at.arguments.at("gamma"),
                                            std::floor(at.t / at.arguments.at("step_size")));
                   },
                   {{"step_size", 0, false, 1}, {"gamma", 0.1}}};
  Schedule exponential{[](const At& at) { return at.b * std::pow(at.arguments.at("gamma"), at.t); },
                       {{"gamma", 0}}};
  Schedule plateau{[](const At& at) { return at.b; },
                   {{"mode", 0, true, 0, 1},
                    {"factor", 0.1, false, 0, 1},
                    {"patience", 10},
                    {"threshold", 1e-4},
                    {"threshold_mode", 0, true, 0, 1},
                    {"cooldown"},
                    {"eps", 1e-8}}};
  Schedule cyclic_lr{cyclic,
                     {{"base_lr", 0.001},
                      {"max_lr", 0.1},
                      {"step_size_up", 2000, false, 1},
                      {"step_size_down"},
                      {"mode", 0, false, 0, 2},
                      {"gamma", 1},
                      {"scale_mode", 0, true, 0, 1},
                      {"cycle_momentum", 1, true, 0, 1}}};
  for (Schedule* schedule : {&step_lr, &exponential, &plateau, &cyclic_lr})
    schedule->warms_up = false;
  return {{"StepLR", step_lr},
          {"ExponentialLR", exponential},
          {"ReduceLROnPlateau", plateau},
          {"CyclicLR", cyclic_lr}};
}

const Table& table() {
  static const Table all = [] {
    Table result = warmup_schedules();
    std::ranges::move(torch_schedules(), std::back_inserter(result));
    return result;
  }();
  return all;
}

const Schedule* find_schedule(const std::string& name) {
  const auto found = std::ranges::find(table(), name, &Table::value_type::first);
  return found == table().end() ? nullptr : &found->second;
}

std::map<std::string, double> all_arguments(const SchedSection& sched) {
  std::map<std::string, double> all;
  for (const OptimizerArgument& argument : schedule_arguments(sched.name))
    all[argument.name] = argument.default_value;
  for (const auto& [name, value] : sched.arguments) all[name] = value;
  return all;
}

void check_arguments(SectionProblems& problems, const SchedSection& sched,
                     const Schedule& schedule) {
  for (const auto& [name, value] : sched.arguments) {
    const auto known = std::ranges::find(schedule.arguments, name, &OptimizerArgument::name);
    if (known == schedule.arguments.end()) {
      problems.push_back({name, fmt::format("{} has no such argument; remove it", sched.name)});
    } else if (!(value >= known->lowest && value <= known->highest)) {
      problems.push_back(
          {name, fmt::format("{} is outside of what {} accepts", value, sched.name)});
    }
  }
  const std::map<std::string, double> all = all_arguments(sched);
  for (const char* required : {"d_model", "step_size"}) {
    if (all.contains(required) && all.at(required) <= 0) {
      problems.push_back(
          {required, fmt::format("{} needs it: expected a number above 0", sched.name)});
    }
  }
  if (sched.name == "ExponentialLR" && all.at("gamma") <= 0) {
    problems.push_back(
        {"gamma", "ExponentialLR needs it: expected a factor per epoch such as 0.9"});
  }
  if (sched.name == "ReduceLROnPlateau" && all.at("factor") >= 1)
    problems.push_back({"factor", "must be below 1"});
  if (sched.name == "CyclicLR" && all.at("cycle_momentum") != 0) {
    problems.push_back(
        {"cycle_momentum", "only the learning rate is cycled; write cycle_momentum: False"});
  }
}

void check_phases(SectionProblems& problems, const SchedSection& sched, const Schedule& schedule,
                  std::int64_t max_steps) {
  const auto unused = [&](const char* key, std::int64_t steps, bool used) {
    if (!used && steps > 0)
      problems.push_back(
          {key, fmt::format("{} has no such phase; remove it or set it to 0", sched.name)});
  };
  unused("warmup_steps", sched.warmup_steps, schedule.warms_up);
  unused("constant_steps", sched.constant_steps, schedule.constant_tail);
  unused("hold_steps", sched.hold_steps, schedule.holds);
  if (sched.name == "NoamHoldAnnealing" && sched.warmup_steps == 0) {
    problems.push_back({"warmup_steps", "NoamHoldAnnealing cannot be used without warm-up"});
  }
  const std::int64_t phases = sched.warmup_steps + sched.hold_steps + sched.constant_steps;
  if (max_steps > 0 && sched.constant_steps > 0 && phases > max_steps) {
    problems.push_back(
        {"constant_steps",
         fmt::format("warmup_steps {} + constant_steps {} leave no step to decay "
                     "in: {}max_steps is {}; "
                     "make constant_steps at most {}",
                     sched.warmup_steps, sched.constant_steps, sched.max_steps ? "" : "trainer.",
                     max_steps, std::max<std::int64_t>(0, max_steps - sched.warmup_steps))});
  }
}

bool is_better(const std::map<std::string, double>& args, double metric, double best) {
  const double sign = args.at("mode") == 0 ? -1 : 1;
  if (std::isinf(best)) return !std::isnan(metric) && metric != best;
  const double limit = args.at("threshold_mode") == 0 ? best * (1 + sign * args.at("threshold"))
                                                      : best + sign * args.at("threshold");
  return sign * metric > sign * limit;
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const auto& [name, schedule] : table()) result.push_back(name);
    return result;
  }();
  return names;
}

double default_min_lr(const std::string& schedule) {
  return schedule == "SquareAnnealing" ? 1e-5 : 0;
}

bool moves_per_epoch(const std::string& schedule) {
  return schedule == "ExponentialLR" || schedule == "ReduceLROnPlateau";
}

std::vector<OptimizerArgument> schedule_arguments(const std::string& schedule) {
  const Schedule* found = find_schedule(schedule);
  return found == nullptr ? std::vector<OptimizerArgument>() : found->arguments;
}

std::vector<SectionProblem> check_schedule(const OptimSection& optim, std::int64_t max_steps) {
  if (!optim.sched) return {};
  const SchedSection& sched = *optim.sched;
  const Schedule* schedule = find_schedule(sched.name);
  if (schedule == nullptr) {
    std::string names;
    for (const std::string& name : schedule_names()) names += (names.empty() ? "" : ", ") + name;
    return {{"name", fmt::format("unknown schedule `{}`; expected one of: {}", sched.name, names)}};
  }
  SectionProblems problems;
  check_arguments(problems, sched, *schedule);
  check_phases(problems, sched, *schedule, max_steps);
  if (!(sched.min_lr >= 0))
    problems.push_back({"min_lr", fmt::format("must not be negative, got {}", sched.min_lr)});
  if (sched.min_lr > optim.lr) {
    problems.push_back(
        {"min_lr", fmt::format("must not exceed model.optim.lr: {} > {}", sched.min_lr, optim.lr)});
  }
  if (sched.name == "LinearAnnealingWithWarmUp" && sched.min_lr > 0) {
    problems.push_back(
        {"min_lr", "LinearAnnealingWithWarmUp falls to 0; remove it or set it to 0"});
  }
  return problems;
}

std::int64_t schedule_steps(const OptimSection& optim, std::int64_t max_steps) {
  return optim.sched ? optim.sched->max_steps.value_or(max_steps) : max_steps;
}

double learning_rate(const OptimSection& optim, std::int64_t max_steps, std::int64_t step,
                     std::int64_t epoch) {
  if (!optim.sched) return optim.lr;
  const SchedSection& sched = *optim.sched;
  const Schedule* schedule = find_schedule(sched.name);
  if (schedule == nullptr)
    throw ConfigError("model.optim.sched.name: unknown schedule `" + sched.name + "`");
  At at;
  at.b = optim.lr;
  at.t = static_cast<double>(moves_per_epoch(sched.name) ? epoch : step);
  at.w = static_cast<double>(sched.warmup_steps);
  at.m = static_cast<double>(schedule_steps(optim, max_steps));
  at.c = static_cast<double>(sched.constant_steps);
  at.h = static_cast<double>(sched.hold_steps + sched.warmup_steps);
  at.p = sched.min_lr;
  at.arguments = all_arguments(sched);
  return schedule->formula(at);
}

LrScheduler::LrScheduler(const OptimSection& optim, std::int64_t max_steps)
    : optim_(optim), max_steps_(max_steps) {
  state_.lr = optim.lr;
  if (optim.sched && optim.sched->name == "ReduceLROnPlateau") {
    const double infinity = std::numeric_limits<double>::infinity();
    state_.best = all_arguments(*optim.sched).at("mode") == 0 ? infinity : -infinity;
  }
}

double LrScheduler::lr(std::int64_t step) const {
  if (optim_.sched && optim_.sched->name == "ReduceLROnPlateau") return state_.lr;
  return learning_rate(optim_, max_steps_, step, state_.epochs);
}

void LrScheduler::end_epoch(double metric) {
  ++state_.epochs;
  if (!optim_.sched || optim_.sched->name != "ReduceLROnPlateau") return;
  const std::map<std::string, double> args = all_arguments(*optim_.sched);
  const bool better = is_better(args, metric, state_.best);
  if (better) state_.best = metric;
  state_.bad_epochs = better ? 0 : state_.bad_epochs + 1;
  if (state_.cooldown > 0) {
    --state_.cooldown;
    state_.bad_epochs = 0;
  }
  if (static_cast<double>(state_.bad_epochs) <= args.at("patience")) return;
  const double reduced = std::max(state_.lr * args.at("factor"), optim_.sched->min_lr);
  if (state_.lr - reduced > args.at("eps")) state_.lr = reduced;
  state_.cooldown = static_cast<std::int64_t>(args.at("cooldown"));
  state_.bad_epochs = 0;
}

}  // namespace trellis::trainer
