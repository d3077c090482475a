// The training loop beyond the step: validation, ends of a run, what a step reports, a loss that is not finite.
#include <atomic>
#include <cmath>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/integration/layout_run.h"
#include "trainer/first_non_finite.h"

namespace trellis::trainer {
namespace {

using testing::HasSubstr;
using testing_support::Layout;
using testing_support::RandomTokens;
using testing_support::small_llama;

/// Random tokens, with `batches` global batches of held-out data that are the training data of steps 1000, 1001, …
class WithValidation final : public DataModule {
 public:
  WithValidation(const RunConfig& config, std::int64_t batches) : tokens_(config), batches_(batches) {}
  [[nodiscard]] std::vector<MicroBatch> micro_batches(std::int64_t step, int dp_rank) const override { return tokens_.micro_batches(step, dp_rank); }
  [[nodiscard]] std::int64_t num_evaluation_batches(Split split) const override { return split == Split::kValidation ? batches_ : 0; }
  [[nodiscard]] std::vector<MicroBatch> evaluation_batches(Split, std::int64_t batch, int dp_rank) const override {
    return tokens_.micro_batches(1000 + batch, dp_rank);
  }
  [[nodiscard]] std::int64_t num_tokens() const override { return tokens_.num_tokens(); }
  [[nodiscard]] std::string description() const override { return tokens_.description(); }

 private:
  RandomTokens tokens_;
  std::int64_t batches_;
};

struct Training {
  std::vector<StepResult> steps;
  StopReason reason = StopReason::kMaxSteps;
};

Training fit(const RunConfig& config, std::int64_t validation_batches = 0) {
  const auto data = std::make_shared<WithValidation>(config, validation_batches);
  Training run;
  runtime::WorldOptions world;
  world.world_size = config.world_size();
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    Trainer trainer(config, rank, data);
    const StopReason reason = trainer.fit([&](const StepResult& step) { run.steps.push_back(step); });
    if (rank.rank() == 0) run.reason = reason;
  });
  return run;
}

RunConfig with_validation(const Layout& layout, std::int64_t steps, std::int64_t interval) {
  RunConfig config = small_llama(layout, "fp64", steps);
  config.trainer.check_val_every_n_epoch = std::nullopt;
  config.trainer.val_check_interval = BatchCount{.count = interval, .fraction = {}};
  return config;
}

TEST(Fit, ValLossIsTheMeanOverItsOwnPassAndTheSameInEveryLayout) {
  const Training one = fit(with_validation({}, 5, 2), 3);
  ASSERT_EQ(one.steps.size(), 5U);
  for (const StepResult& step : one.steps) EXPECT_EQ(step.val_loss.has_value(), step.step % 2 == 0) << step.step;
  EXPECT_NE(*one.steps[1].val_loss, *one.steps[3].val_loss);
  for (const Layout& layout : {Layout{2, 1, 1, true, true}, Layout{1, 2, 1, false, true}, Layout{2, 2, 2, true, true}}) {
    const Training run = fit(with_validation(layout, 5, 2), 3);
    for (const std::size_t i : {1U, 3U}) EXPECT_NEAR(*run.steps[i].val_loss, *one.steps[i].val_loss, 1e-10 * *one.steps[i].val_loss);
  }
}

/// With a learning rate of zero every pass sees the same weights, and so gives the same number: nothing of an earlier pass is left in it. A
/// pass over two batches is the mean of theirs, each of which a training step of that data shows.
TEST(Fit, ValLossIsAMeanOverItsBatchesOnly) {
  RunConfig config = with_validation({}, 3, 1);
  config.model.optim.lr = 0;
  config.model.optim.sched.reset();
  const auto val_loss = [&](std::int64_t batches) {
    const Training run = fit(config, batches);
    for (const StepResult& step : run.steps) EXPECT_EQ(*step.val_loss, *run.steps[0].val_loss);
    return *run.steps[0].val_loss;
  };
  const double first = val_loss(1), both = val_loss(2), three = val_loss(3);
  EXPECT_NE(first, both);
  const double second = 2 * both - first, third = 3 * three - first - second;
  for (const double loss : {first, second, third}) EXPECT_NEAR(loss, fit(config).steps[0].loss, 0.5) << "each is the loss of an untrained model";
}

TEST(Fit, ValidationDoesNotChangeTraining) {
  const Training without = fit(small_llama({}, "fp64", 4));
  RunConfig config = with_validation({}, 4, 1);
  config.trainer.num_sanity_val_steps = 2;
  const Training with = fit(config, 3);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(with.steps[i].loss, without.steps[i].loss);
}

TEST(Fit, ValidationWithVirtualStagesIsANamedError) {
  const Layout layout{1, 2, 1, false, true, 2};
  try {
    (void)fit(with_validation(layout, 2, 1), 1);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("trainer.limit_val_batches: validation has no schedule with virtual stages"));
  }
  EXPECT_EQ(fit(small_llama(layout, "fp64", 1)).steps.size(), 1U) << "without held-out data it trains";
}

TEST(Fit, AStepReportsItsSamplesAndNorms) {
  RunConfig config = small_llama({}, "fp64", 3);
  config.exp_manager.log_parameter_norm = true;
  const Training one = fit(config);
  for (const StepResult& step : one.steps) {
    EXPECT_EQ(step.consumed_samples, step.step * 8);
    EXPECT_GT(step.grad_norm, 0) << "of this step, also in the first";
  }
  RunConfig spread = small_llama({2, 2, 2, true, true}, "fp64", 3);
  spread.exp_manager.log_parameter_norm = true;
  const Training run = fit(spread);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(*run.steps[i].parameter_norm, *one.steps[i].parameter_norm, 1e-10 * *one.steps[i].parameter_norm);
}

TEST(Fit, MaxEpochsAndMaxTimeEndARun) {
  RunConfig config = small_llama({}, "fp32", 50);
  config.trainer.limit_train_batches = BatchCount{.count = 2, .fraction = {}};
  config.trainer.max_epochs = 2;
  Training run = fit(config);
  EXPECT_EQ(run.steps.size(), 4U);
  EXPECT_EQ(run.reason, StopReason::kMaxEpochs);

  for (const Layout& layout : {Layout{}, Layout{1, 2, 2, false, true}}) {
    RunConfig timed = small_llama(layout, "fp32", 1000);
    timed.trainer.max_time_s = 0;
    run = fit(timed);
    runtime::clear_stop_request();
    EXPECT_EQ(run.steps.size(), 1U) << "the clock is read at step borders";
    EXPECT_EQ(run.reason, StopReason::kMaxTime);
  }
}

TEST(Fit, AStopRequestEndsEveryRankAtTheSameStep) {
  RunConfig config = small_llama({1, 2, 2, false, true}, "fp32", 1000);
  const auto data = std::make_shared<RandomTokens>(config);
  std::atomic<int> interrupted = 0;
  std::int64_t steps = 0;
  runtime::WorldOptions world;
  world.world_size = config.world_size();
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    Trainer trainer(config, rank, data);
    const StopReason reason = trainer.fit([&](const StepResult& step) {
      steps = step.step;
      if (step.step == 3) runtime::request_stop();
    });
    interrupted += reason == StopReason::kInterrupted ? 1 : 0;
  });
  runtime::clear_stop_request();
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(interrupted, 4);
}

TEST(Fit, EarlyStoppingFollowsTheMonitoredNumber) {
  for (const Layout& layout : {Layout{}, Layout{1, 2, 2, false, true}}) {
    RunConfig config = with_validation(layout, 50, 2);
    config.exp_manager.early_stopping = {.min_delta = 100, .patience = 2, .stopping_threshold = {}, .divergence_threshold = {}};
    const Training run = fit(config, 1);
    EXPECT_EQ(run.steps.size(), 6U) << "the best value and two that are no better, every second step";
    EXPECT_EQ(run.reason, StopReason::kEarlyStopping);
  }
}

TEST(Fit, AMonitoredNumberThatIsNeverThereIsNamed) {
  RunConfig config = small_llama({}, "fp32", 2);
  config.exp_manager.early_stopping = EarlyStoppingSection{};
  EXPECT_THROW((void)fit(config), ConfigError) << "no held-out data";
  EXPECT_THROW((void)fit(config, 1), ConfigError) << "no validation within two steps";
  config.exp_manager.early_stopping->monitor = "reduced_train_loss";
  EXPECT_EQ(fit(config).steps.size(), 2U);
}

TEST(Fit, ALossThatIsNotFiniteIsNamedWithStepAndLayer) {
  for (const Layout& layout : {Layout{}, Layout{2, 2, 1, true, true}, Layout{1, 2, 2, false, true}}) {
    RunConfig config = small_llama(layout, "fp32", 20);
    config.model.optim.lr = 1e25;
    config.model.optim.sched.reset();
    try {
      (void)fit(config);
      ADD_FAILURE() << "trained on";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::ContainsRegex("step [0-9]+: the loss is -?(nan|inf)"));
      EXPECT_THAT(error.what(), testing::ContainsRegex("the first value that is not finite is the (output of|weight) "));
      EXPECT_THAT(error.what(), HasSubstr("The weights are those of step "));
    }
  }
}

/// y = w · x; each stage says its name, as modules do.
class NamedStage final : public PipelineStage {
 public:
  NamedStage(at::Tensor weight, LayerScope scope, bool is_last) : weight_(std::move(weight)), scope_(std::move(scope)), is_last_(is_last) {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& input, const MicroBatch& batch) const override {
    const Scope scope = scope_.enter();
    const at::Tensor output = scope_.leave((input.defined() ? input : batch.input_ids) * weight_);
    return is_last_ ? output.sum() : output;
  }

 private:
  at::Tensor weight_;
  LayerScope scope_;
  bool is_last_;
};

/// What every rank of a chain of stages says, joined.
std::string search(int pp, int vpp, const std::vector<double>& weights, const std::vector<double>& inputs) {
  std::string found;
  std::mutex mutex;
  runtime::WorldOptions world;
  world.world_size = pp;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const ParallelState state = ParallelState::initialize_model_parallel(rank, 1, pp);
    ParameterList parameters;
    ModuleContext context;
    context.parallel = &state;
    context.parameters = &parameters;
    context.backward = std::make_shared<BackwardLayer>();
    context.dtype = at::kDouble;
    std::vector<std::unique_ptr<PipelineStage>> stages;
    for (int chunk = 0; chunk < vpp; ++chunk) {
      const int s = chunk * pp + rank.rank();
      const at::Tensor weight = at::full({1}, weights[static_cast<std::size_t>(s)], at::kDouble).requires_grad_();
      parameters.push_back({});
      parameters.back().name = "layers." + std::to_string(s) + ".weight";
      parameters.back().tensor = weight;
      stages.push_back(std::make_unique<NamedStage>(weight, context.scope("layers." + std::to_string(s)), s == pp * vpp - 1));
    }
    PipelineOptions options;
    options.num_microbatches = static_cast<int>(inputs.size());
    NxDPPModel model(std::move(stages), context, options);
    std::vector<MicroBatch> batches(inputs.size());
    for (std::size_t m = 0; m < inputs.size(); ++m) batches[m].input_ids = at::full({1}, inputs[m], at::kDouble);
    const std::string text = first_non_finite(model, context, batches);
    const std::lock_guard<std::mutex> lock(mutex);
    if (!text.empty() && found != text) found += text;
  });
  return found;
}

TEST(FirstNonFinite, IsTheEarliestMicroBatchAndThereTheFirstLayer) {
  EXPECT_EQ(search(3, 1, {1, 2, 3}, {1, 2, INFINITY, INFINITY}), "the output of layers.0 (micro-batch 2)");
  EXPECT_EQ(search(3, 1, {1, 1e300, 3}, {1, 1e200, 1, 1e200}), "the output of layers.1 (micro-batch 1)");
  EXPECT_EQ(search(2, 2, {1, 1e300, 1, 1}, {1, 1, 1e200, 1e200}), "the output of layers.1 (micro-batch 2)");
  EXPECT_EQ(search(2, 2, {1, 1, 1e300, 1e300}, {1, 1e9, 1, 1}), "the output of layers.3 (micro-batch 0)");
}

TEST(FirstNonFinite, AWeightComesBeforeEveryOutput) { EXPECT_EQ(search(3, 1, {1, 1, NAN}, {INFINITY, 1}), "the weight layers.2.weight"); }

TEST(FirstNonFinite, NothingIsSaidToBeNothing) { EXPECT_EQ(search(2, 1, {1, 2}, {1, 2}), "nothing: the repeated step is finite"); }

}  // namespace
}  // namespace trellis::trainer
