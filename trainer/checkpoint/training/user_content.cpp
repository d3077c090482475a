#include "trainer/checkpoint/training/user_content.h"

#include "base/error.h"
#include "base/log.h"
#include "runtime/ranks/world.h"
#include "trainer/config/lr_scheduler.h"
#include "trainer/config/run_config.h"
#include "trainer/loop/early_stopping.h"
#include "trainer/optimizer/zero_redundancy_optimizer.h"

namespace trellis::checkpoint {
namespace {

using trainer::EarlyStopping;
using trainer::LrScheduler;
using trainer::TrainingState;

constexpr const char* kEarlyStopping = "EarlyStopping";
constexpr const char* kLightningVersion = "2.5.0";

Value early_stopping_value(const EarlyStopping& stopping, bool stop_requested) {
  const EarlyStopping::State state = stopping.state();
  return Value::dict({{"monitor", Value(stopping.monitor())},
                      {"best_score", state.best ? Value(*state.best) : Value()},
                      {"wait_count", Value(state.waited)},
                      {"stop_requested", Value(stop_requested)}});
}

void restore_early_stopping(const Value& content, const TrainingState& state) {
  if (state.early_stopping == nullptr) return;
  const Value* value = content.at("callbacks").find(kEarlyStopping);
  if (value == nullptr || value->at("monitor").as_string() != state.early_stopping->monitor())
    return;  // another number is watched from now on
  const Value& best = value->at("best_score");
  state.early_stopping->restore({best.is_none() ? std::nullopt : std::optional(best.as_double()),
                                 static_cast<int>(value->at("wait_count").as_int())});
  if (state.rank.rank() == 0) state.stop_requested = value->at("stop_requested").as_bool();
}

Value content_of(const trainer::RunConfig& config, const LrScheduler::State& scheduler,
                 const UserNumbers& numbers) {
  return Value::dict({{"epoch", Value(0)},
                      {"global_step", Value(numbers.step)},
                      {"pytorch-lightning_version", Value(kLightningVersion)},
                      {"callbacks", Value::dict()},
                      {"lr_schedulers", Value::list({scheduler_value(scheduler, numbers)})},
                      {"hyper_parameters", Value::dict({{"cfg", Value(config.resolved_yaml)}})},
                      {"consumed_samples", Value(numbers.consumed_samples)},
                      {"optimizer_steps", Value(numbers.step)},
                      {"rng", Value::dict({{"seed", Value(config.seed)}})}});
}

}  // namespace

Value scheduler_value(const LrScheduler::State& state, const UserNumbers& numbers) {
  return Value::dict({{"last_epoch", Value(numbers.step)},
                      {"_last_lr", Value::list({Value(numbers.lr)})},
                      {"best", Value(state.best)},
                      {"epochs", Value(state.epochs)},
                      {"num_bad_epochs", Value(state.bad_epochs)},
                      {"cooldown_counter", Value(state.cooldown)},
                      {"plateau_lr", Value(state.lr)}});
}

LrScheduler::State scheduler_state(const Value& value) {
  return {value.at("best").as_double(), value.at("epochs").as_int(),
          value.at("num_bad_epochs").as_int(), value.at("cooldown_counter").as_int(),
          value.at("plateau_lr").as_double()};
}

Value user_content_of(const TrainingState& state, const UserNumbers& numbers) {
  Value content = content_of(state.config, state.scheduler.state(), numbers);
  content.set("epoch", Value(numbers.step / state.batches_per_epoch));
  content.set("optimizer_steps", Value(state.optimizer.steps()));
  if (state.early_stopping != nullptr) {
    Value callbacks = Value::dict();
    callbacks.set(kEarlyStopping,
                  early_stopping_value(*state.early_stopping, state.stop_requested));
    content.set("callbacks", std::move(callbacks));
  }
  return content;
}

Value user_content_of(const trainer::RunConfig& config, const UserNumbers& numbers) {
  return content_of(config, LrScheduler(config.model.optim, config.trainer.max_steps).state(),
                    numbers);
}

void restore_user_content(const Value& content, const TrainingState& state,
                          const std::string& where) {
  try {
    state.optimizer.continue_after(content.at("optimizer_steps").as_int());
    state.position.step = content.at("global_step").as_int();
    const Value::List& schedulers = content.at("lr_schedulers").items();
    if (schedulers.size() != 1) throw ConfigError("lr_schedulers: expected one");
    state.scheduler.restore(scheduler_state(schedulers.front()));
    restore_early_stopping(content, state);
    const std::int64_t seed = content.at("rng").at("seed").as_int();
    if (seed != state.config.seed && state.rank.rank() == 0)
      log_warning(where + ": was saved with seed " + std::to_string(seed) + ", the run has " +
                  std::to_string(state.config.seed) +
                  ": the order of text data and what dropout drops are other ones from here on");
  } catch (const ConfigError& error) {
    throw ConfigError(where + "/user_content.pt: " + error.what());
  }
}

}  // namespace trellis::checkpoint
