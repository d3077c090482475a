// Values that are not finite: a loss, a gradient, and who is named for it.
#include <cmath>
#include <mutex>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/integration/layout_run.h"
#include "trainer/loop/first_non_finite.h"

namespace trellis::trainer {
namespace {

using testing::HasSubstr;
using testing_support::Layout;
using testing_support::RandomTokens;
using testing_support::small_llama;

TEST(NonFinite, ALossThatIsNotFiniteIsNamedWithStepAndLayer) {
  for (const Layout& layout :
       {Layout{}, Layout{2, 2, 1, true, true}, Layout{1, 2, 2, false, true}}) {
    for (const auto& [value, culprit] :
         {std::pair{3e38, "the output of model.layers.3.mlp"},
          {static_cast<double>(NAN), "the weight model.layers.3.mlp.down_proj.weight"}}) {
      const RunConfig config = small_llama(layout, "fp32", 20);
      TrainerHooks hooks;
      hooks.built = [&, filled = value](ParameterList& parameters) {
        const at::NoGradGuard no_grad;
        for (Parameter& parameter : parameters) {
          if (parameter.name == "model.layers.3.mlp.down_proj.weight")
            parameter.tensor.fill_(filled);
        }
      };
      runtime::WorldOptions world;
      world.world_size = config.world_size();
      try {
        runtime::run_ranks(world, [&](runtime::RankContext& rank) {
          const ParallelSizes sizes{.tensor_model_parallel_size = config.tp(),
                                    .pipeline_model_parallel_size = config.pp()};
          Trainer(config, rank, std::make_shared<RandomTokens>(config),
                  ParallelState::initialize_model_parallel(rank, sizes), hooks)
              .fit([](const StepResult&) {});
        });
        ADD_FAILURE() << "trained on";
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), testing::ContainsRegex("step 1: the loss is -?(nan|inf)"));
        EXPECT_THAT(error.what(),
                    HasSubstr(std::string("the first value that is not finite is ") + culprit));
        EXPECT_THAT(error.what(), HasSubstr("The weights are those of step 0"));
      }
    }
  }
}

/// A run whose gradient of `parameter` is spoiled in step 3, between its reduction and the
/// optimizer.
struct Spoiled {
  RunConfig config;
  std::string parameter = "model.layers.3.mlp.down_proj.weight";
  float value = NAN;

  std::vector<StepResult> steps;
  std::vector<std::map<std::string, Trainer::LocalWeight>> weights;  ///< by rank, at the end
  /// where it was spoiled; without ZeRO-1 the lowest of those that hold it
  std::atomic<int> rank = -1;
  std::string error;

  void run() {
    weights.resize(static_cast<std::size_t>(config.world_size()));
    runtime::WorldOptions world;
    world.world_size = config.world_size();
    try {
      runtime::run_ranks(world, [&](runtime::RankContext& context) { run_rank(context); });
    } catch (const ConfigError& thrown) {
      error = thrown.what();
    }
  }

 private:
  void run_rank(runtime::RankContext& context) {
    TrainerHooks hooks;
    hooks.gradients_reduced = [&, step = 0](const NeuronZero1Optimizer& optimizer) mutable {
      if (++step == 3) spoil(optimizer, context.rank());
    };
    const ParallelSizes sizes{.tensor_model_parallel_size = config.tp(),
                              .pipeline_model_parallel_size = config.pp()};
    Trainer trainer(config, context, std::make_shared<RandomTokens>(config),
                    ParallelState::initialize_model_parallel(context, sizes), hooks);
    const auto keep = [&] {
      weights[static_cast<std::size_t>(context.rank())] = trainer.local_weights();
    };
    try {
      trainer.fit([&](const StepResult& step) { steps.push_back(step); });
    } catch (...) {
      keep();
      throw;
    }
    keep();
  }

  void spoil(const NeuronZero1Optimizer& optimizer, int self) {
    optimizer.for_each_reduced_gradient([&](const ShardSlot& slot, const at::Tensor& rows) {
      if (slot.parameter->name != parameter || rows.numel() == 0) return;
      int none = -1;
      const bool first = rank.compare_exchange_strong(none, self);
      const bool copied = !config.distributed_strategy.zero1;
      // every data-parallel rank has the same reduced gradient
      if (first || copied) rows[0] = value;
      if (copied && self < rank) rank = self;
    });
  }
};

RunConfig for_spoiling(const Layout& layout, const std::string& precision, bool clips,
                       std::int64_t steps) {
  RunConfig config = small_llama(layout, precision, steps);
  config.model.optim.sched.reset();
  if (!clips) config.trainer.gradient_clip_val.reset();
  return config;
}

void expect_weights_of_step_2(const Spoiled& run) {
  Spoiled before{.config = run.config};
  before.config.trainer.max_steps = 2;
  before.run();
  ASSERT_EQ(before.error, "");
  for (std::size_t rank = 0; rank < run.weights.size(); ++rank) {
    ASSERT_FALSE(run.weights[rank].empty());
    for (const auto& [name, weight] : run.weights[rank])
      EXPECT_TRUE(weight.tensor.equal(before.weights[rank].at(name).tensor)) << rank << " " << name;
  }
}

struct SpoiledCase {
  Layout layout;
  const char* precision = "fp32";
  bool clips = true;
  int stage = 0;  ///< of layer 3
};

const std::vector<SpoiledCase> kSpoiledCases = {
    {{}},
    {{2, 2, 1, true, true}, "fp32", false, 1},
    {{1, 1, 4, false, true}, "mixed_precision", true},
    {{1, 1, 2, false, false}, "fp32", false},
    {{1, 2, 2, false, true, 2}, "mixed_precision", true, 3}};

TEST(NonFinite, AGradientThatIsNotFiniteEndsTheRunWithTheWeightsBeforeIt) {
  for (const SpoiledCase& c : kSpoiledCases) {
    Spoiled run{.config = for_spoiling(c.layout, c.precision, c.clips, 5)};
    run.run();
    EXPECT_THAT(run.error, testing::ContainsRegex(
                               "step 3: the norm of the gradients is -?nan \\(loss [0-9.]+\\)"));
    EXPECT_THAT(run.error, HasSubstr("the first value that is not finite is the gradient of " +
                                     run.parameter + " on rank " + std::to_string(run.rank) +
                                     " (pipeline stage " + std::to_string(c.stage) + ")"));
    EXPECT_THAT(run.error, HasSubstr("The weights are those of step 2"));
    EXPECT_EQ(run.steps.size(), 2U);
    expect_weights_of_step_2(run);
  }
}

TEST(NonFinite, SkipNanGradGoesOnWithTheWeightsBeforeIt) {
  for (const SpoiledCase& c : kSpoiledCases) {
    Spoiled run{.config = for_spoiling(c.layout, c.precision, c.clips, 3)};
    run.config.model.skip_nan_grad = true;
    testing::internal::CaptureStderr();
    run.run();
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("is the gradient of " + run.parameter));
    EXPECT_EQ(run.error, "");
    ASSERT_EQ(run.steps.size(), 3U);
    EXPECT_TRUE(run.steps[2].skipped && !run.steps[1].skipped);
    expect_weights_of_step_2(run);
  }
  Spoiled longer{.config = for_spoiling({2, 1, 2, true, true}, "fp32", true, 5)};
  longer.config.model.skip_nan_grad = true;
  longer.run();
  ASSERT_EQ(longer.steps.size(), 5U);
  EXPECT_FALSE(longer.steps[4].skipped);
  EXPECT_TRUE(std::isfinite(longer.steps[4].loss) && std::isfinite(longer.steps[4].grad_norm));
}

/// Squares of fp32 overflow from 1.8e19 on, though the gradients do not.
TEST(NonFinite, ANormThatOverflowsNamesTheLargestGradient) {
  Spoiled run{.config = for_spoiling({1, 2, 2, false, true}, "fp32", true, 5), .value = 1e30F};
  run.run();
  EXPECT_THAT(run.error, HasSubstr("the norm of the gradients is inf"));
  EXPECT_THAT(
      run.error,
      HasSubstr("the sum of their squares; the largest element, 1e+30, is in the gradient of " +
                run.parameter));
  expect_weights_of_step_2(run);
}

/// y = w · x; each stage says its name, as modules do.
class NamedStage final : public PipelineStage {
 public:
  NamedStage(at::Tensor weight, LayerScope scope, bool is_last)
      : weight_(std::move(weight)), scope_(std::move(scope)), is_last_(is_last) {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& input,
                                   const MicroBatch& batch) const override {
    const Scope scope = scope_.enter();
    const at::Tensor output = scope_.leave((input.defined() ? input : batch.input_ids) * weight_);
    return is_last_ ? output.sum() : output;
  }

 private:
  at::Tensor weight_;
  LayerScope scope_;
  bool is_last_;
};

/// The findings of every rank of a chain of stages, joined.
std::string search(int pp, int vpp, const std::vector<double>& weights,
                   const std::vector<double>& inputs) {
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
      const at::Tensor weight =
          at::full({1}, weights[static_cast<std::size_t>(s)], at::kDouble).requires_grad_();
      parameters.push_back({});
      parameters.back().name = "layers." + std::to_string(s) + ".weight";
      parameters.back().tensor = weight;
      stages.push_back(std::make_unique<NamedStage>(
          weight, context.scope("layers." + std::to_string(s)), s == pp * vpp - 1));
    }
    PipelineOptions options;
    options.num_microbatches = static_cast<int>(inputs.size());
    NxDPPModel model(std::move(stages), context, options);
    std::vector<MicroBatch> batches(inputs.size());
    for (std::size_t m = 0; m < inputs.size(); ++m)
      batches[m].input_ids = at::full({1}, inputs[m], at::kDouble);
    const std::string text = first_non_finite(model, context, batches);
    const std::lock_guard<std::mutex> lock(mutex);
    if (!text.empty() && found != text) found += text;
  });
  return found;
}

TEST(FirstNonFinite, IsTheEarliestMicroBatchAndThereTheFirstLayer) {
  EXPECT_EQ(search(3, 1, {1, 2, 3}, {1, 2, INFINITY, INFINITY}),
            "the output of layers.0 (micro-batch 2)");
  EXPECT_EQ(search(3, 1, {1, 1e300, 3}, {1, 1e200, 1, 1e200}),
            "the output of layers.1 (micro-batch 1)");
  EXPECT_EQ(search(2, 2, {1, 1e300, 1, 1}, {1, 1, 1e200, 1e200}),
            "the output of layers.1 (micro-batch 2)");
  EXPECT_EQ(search(2, 2, {1, 1, 1e300, 1e300}, {1, 1e9, 1, 1}),
            "the output of layers.3 (micro-batch 0)");
}

TEST(FirstNonFinite, AWeightComesBeforeEveryOutput) {
  EXPECT_EQ(search(3, 1, {1, 1, NAN}, {INFINITY, 1}), "the weight layers.2.weight");
}

TEST(FirstNonFinite, NothingIsSaidToBeNothing) {
  EXPECT_EQ(search(2, 1, {1, 2}, {1, 2}), "nothing: the repeated step is finite");
}

}  // namespace
}  // namespace trellis::trainer
