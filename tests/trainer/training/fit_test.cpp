// The training loop beyond the step: validation, ends of a run, what a step reports.
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/rendezvous/stop_request.h"
#include "tests/integration/layout_run.h"
#include "trainer/config/logged_scalars.h"
#include "trainer/loop/built_model.h"
#include "trainer/loop/rank_model.h"

namespace trellis::trainer {
namespace {

using testing::HasSubstr;
using testing_support::Layout;
using testing_support::RandomTokens;
using testing_support::small_llama;

/// Random tokens, with `batches` global batches of held-out data that are the training data of
/// steps 1000, 1001, …
class WithValidation final : public DataModule {
 public:
  WithValidation(const RunConfig& config, std::int64_t batches)
      : tokens_(config), batches_(batches) {}
  [[nodiscard]] std::vector<MicroBatch> micro_batches(std::int64_t step,
                                                      int dp_rank) const override {
    return tokens_.micro_batches(step, dp_rank);
  }
  [[nodiscard]] std::int64_t num_evaluation_batches(Split split) const override {
    return split == Split::kValidation ? batches_ : 0;
  }
  [[nodiscard]] std::vector<MicroBatch> evaluation_batches(Split, std::int64_t batch,
                                                           int dp_rank) const override {
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
  std::optional<Evaluation> test;
};

/// Every rank must say the same.
Training fit(const RunConfig& config, const std::shared_ptr<const DataModule>& data) {
  Training run;
  std::vector<StopReason> reasons(static_cast<std::size_t>(config.world_size()));
  std::vector<std::optional<Evaluation>> tests(reasons.size());
  runtime::WorldOptions world;
  world.world_size = config.world_size();
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    Trainer trainer(config, rank, data);
    const auto self = static_cast<std::size_t>(rank.rank());
    reasons[self] = trainer.fit([&](const StepResult& step) { run.steps.push_back(step); });
    tests[self] = trainer.test();
  });
  run.reason = reasons[0];
  run.test = tests[0];
  for (const StopReason reason : reasons) EXPECT_EQ(reason, reasons[0]);
  for (const auto& test : tests) EXPECT_EQ(test ? test->loss : -1, run.test ? run.test->loss : -1);
  return run;
}

Training fit(const RunConfig& config, std::int64_t validation_batches = 0) {
  return fit(config, std::make_shared<WithValidation>(config, validation_batches));
}

/// Held-out rows of random tokens, of which only the first ones count in the loss; what the last
/// global batch does not have is filled by rows without loss. Row r is the same in every layout and
/// for every size of micro-batch.
class HeldOutRows final : public DataModule {
 public:
  HeldOutRows(const RunConfig& config, std::int64_t rows)
      : config_(config), tokens_(config), rows_(rows) {}
  [[nodiscard]] std::vector<MicroBatch> micro_batches(std::int64_t step,
                                                      int dp_rank) const override {
    return tokens_.micro_batches(step, dp_rank);
  }
  [[nodiscard]] std::int64_t num_evaluation_batches(Split split) const override {
    const std::int64_t global = config_.data.global_batch_size;
    return split == Split::kTrain ? 0 : (rows_ + global - 1) / global;
  }
  [[nodiscard]] std::vector<MicroBatch> evaluation_batches(Split, std::int64_t batch,
                                                           int dp_rank) const override {
    const std::int64_t b = config_.data.micro_batch_size, s = config_.model.encoder_seq_length;
    std::vector<MicroBatch> result;
    for (int m = 0; m < config_.num_microbatches(); ++m) {
      MicroBatch micro{at::zeros({b, s}, at::kLong), at::zeros({b, s}, at::kLong)};
      micro.loss_mask = at::zeros({b, s}, at::kFloat);
      for (std::int64_t i = 0; i < b; ++i) {
        const std::int64_t row =
            batch * config_.data.global_batch_size + (m * b + i) * config_.dp() + dp_rank;
        if (row < rows_) fill(micro, i, row);
      }
      result.push_back(std::move(micro));
    }
    return result;
  }
  [[nodiscard]] std::int64_t num_tokens() const override { return tokens_.num_tokens(); }
  [[nodiscard]] std::string description() const override { return "held-out rows"; }
  /// Labels of row r with a loss: 1 … s.
  [[nodiscard]] std::int64_t counted(std::int64_t row) const {
    return 1 + row * 7 % config_.model.encoder_seq_length;
  }

 private:
  void fill(const MicroBatch& micro, std::int64_t i, std::int64_t row) const {
    const std::int64_t s = config_.model.encoder_seq_length;
    at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(77 + row));
    const at::Tensor tokens = at::randint(0, 51, {s + 1}, generator, at::kLong);
    micro.input_ids[i].copy_(tokens.narrow(0, 0, s));
    micro.labels[i].copy_(tokens.narrow(0, 1, s));
    micro.loss_mask[i].narrow(0, 0, counted(row)).fill_(1);
  }
  RunConfig config_;
  RandomTokens tokens_;
  std::int64_t rows_;
};

RunConfig with_validation(const Layout& layout, std::int64_t steps, std::int64_t interval) {
  RunConfig config = small_llama(layout, "fp64", steps);
  config.trainer.check_val_every_n_epoch = std::nullopt;
  config.trainer.val_check_interval = BatchCount{.count = interval, .fraction = {}};
  return config;
}

TEST(Fit, AModelThatIsNotAsPlannedIsRefused) {
  const RunConfig config = small_llama(Layout{.pp = 2}, "fp32", 1);
  runtime::WorldOptions world;
  world.world_size = config.world_size();
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const auto parallel = ParallelState::initialize_model_parallel(rank, parallel_sizes(config));
    ParameterList parameters;
    const auto stages = build_stages(config, module_context(config, {}, parallel, parameters));
    EXPECT_THAT(check_built(config, parallel, parameters),
                HasSubstr(rank.rank() == 0 ? "2 of 5 layers" : "3 of 5 layers"));
    parameters.pop_back();
    EXPECT_THROW((void)check_built(config, parallel, parameters), Error);
  });
}

TEST(Fit, ValLossIsTheMeanOverItsOwnPassAndTheSameInEveryLayout) {
  const Training one = fit(with_validation({}, 5, 2), 3);
  ASSERT_EQ(one.steps.size(), 5U);
  for (const StepResult& step : one.steps)
    EXPECT_EQ(step.val_loss.has_value(), step.step % 2 == 0) << step.step;
  EXPECT_NE(*one.steps[1].val_loss, *one.steps[3].val_loss);
  for (const Layout& layout :
       {Layout{2, 1, 1, true, true}, Layout{1, 2, 1, false, true}, Layout{2, 2, 2, true, true}}) {
    const Training run = fit(with_validation(layout, 5, 2), 3);
    for (const std::size_t i : {1U, 3U})
      EXPECT_NEAR(*run.steps[i].val_loss, *one.steps[i].val_loss, 1e-10 * *one.steps[i].val_loss);
  }
}

/// With a learning rate of zero every pass sees the same weights, and so gives the same number:
/// nothing of an earlier pass is left in it. A pass over two batches is the mean of theirs, each of
/// which a training step of that data shows.
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
  for (const double loss : {first, second, third})
    EXPECT_NEAR(loss, fit(config).steps[0].loss, 0.5) << "each is the loss of an untrained model";
}

/// Sums over labels grow by a row's own sum, whatever fills the batch; the row's mean is a
/// plausible loss of an untrained model.
TEST(Fit, RowsThatOnlyFillABatchWeighNothingInValidation) {
  RunConfig config = with_validation({}, 1, 1);
  config.model.optim.lr = 0;
  config.model.optim.sched.reset();
  double sum = 0, labels = 0;
  for (const std::int64_t rows : {1, 2, 3, 8, 9}) {
    const auto data = std::make_shared<HeldOutRows>(config, rows);
    double all = 0;
    for (std::int64_t row = 0; row < rows; ++row) all += static_cast<double>(data->counted(row));
    const double total = *fit(config, data).steps[0].val_loss * all;
    EXPECT_NEAR((total - sum) / (all - labels), std::log(64.0), 2.0)
        << rows << " rows: the mean of those that came";
    sum = total;
    labels = all;
  }
}

TEST(Fit, ValLossDependsOnNeitherLayoutNorMicroBatchSize) {
  const auto val_loss = [](const Layout& layout, int micro_batch_size, std::int64_t rows) {
    RunConfig config = with_validation(layout, 1, 1);
    config.model.optim.lr = 0;
    config.model.optim.sched.reset();
    config.data.micro_batch_size = micro_batch_size;
    return *fit(config, std::make_shared<HeldOutRows>(config, rows)).steps[0].val_loss;
  };
  for (const std::int64_t rows : {3, 13}) {
    const double one = val_loss({}, 1, rows);
    for (const int size : {2, 4, 8})
      EXPECT_NEAR(val_loss({}, size, rows), one, 1e-10 * one) << size;
    for (const Layout& layout : {Layout{1, 1, 4, false, true}, Layout{2, 1, 2, true, true},
                                 Layout{1, 2, 2, false, true}}) {
      EXPECT_NEAR(val_loss(layout, 2, rows), one, 1e-10 * one);
    }
  }
}

TEST(Fit, HeldOutDataWithoutALabelThatCountsAreNamed) {
  class Nothing final : public DataModule {
   public:
    explicit Nothing(const RunConfig& config) : rows_(config, 1) {}
    [[nodiscard]] std::vector<MicroBatch> micro_batches(std::int64_t step,
                                                        int dp_rank) const override {
      return rows_.micro_batches(step, dp_rank);
    }
    [[nodiscard]] std::int64_t num_evaluation_batches(Split split) const override {
      return rows_.num_evaluation_batches(split);
    }
    [[nodiscard]] std::vector<MicroBatch> evaluation_batches(Split split, std::int64_t batch,
                                                             int dp_rank) const override {
      auto batches = rows_.evaluation_batches(split, batch, dp_rank);
      for (MicroBatch& micro : batches) micro.labels.fill_(-100);
      return batches;
    }
    [[nodiscard]] std::int64_t num_tokens() const override { return rows_.num_tokens(); }
    [[nodiscard]] std::string description() const override { return "no labels"; }

   private:
    HeldOutRows rows_;
  };
  const RunConfig config = with_validation({}, 1, 1);
  try {
    (void)fit(config, std::make_shared<Nothing>(config));
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no label of the validation data counts in the loss"));
  }
}

TEST(Fit, ATestPassIsAValidationPassOverTheTestData) {
  for (const Layout& layout :
       {Layout{}, Layout{2, 2, 1, true, true}, Layout{1, 1, 4, false, true}}) {
    RunConfig config = with_validation(layout, 4, 2);
    const Training run = fit(config, std::make_shared<HeldOutRows>(config, 11));
    ASSERT_TRUE(run.test.has_value());
    EXPECT_EQ(run.test->batches, 2);
    EXPECT_EQ(run.test->loss, *run.steps[3].val_loss) << "the same rows, the same weights";
    EXPECT_EQ(run.steps[3].validation_batches, 2);
  }
  EXPECT_FALSE(fit(small_llama({}, "fp32", 1)).test.has_value()) << "no test data";
}

/// Validation data that fill no global batch are not passed over in silence.
TEST(Fit, ValidationDataBelowAGlobalBatchAreNamed) {
  RunConfig config = with_validation({}, 2, 1);
  config.data.kind = DataKind::kHfDataset;
  config.data.val_dir = "/data/held_out";
  try {
    (void)fit(config);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("data.val_dir: /data/held_out: no validation will run"));
    EXPECT_THAT(error.what(), HasSubstr("global_batch_size 8"));
  }
  config.trainer.limit_val_batches = BatchCount{.count = 0, .fraction = {}};
  EXPECT_EQ(fit(config).steps.size(), 2U) << "no validation was asked for";

  config = with_validation({1, 1, 2, false, true}, 2, 1);
  config.data.kind = DataKind::kMegatron;
  config.data.splits = {98, 1, 1};
  testing::internal::CaptureStderr();
  EXPECT_EQ(fit(config).steps.size(), 2U);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("data.splits_string: no validation will run"));
  EXPECT_EQ(said.find("no validation"), said.rfind("no validation")) << "once, not by every rank";
}

/// Ranks that hold the same key/value heads: neighbours on trn2, every second one on trn1. The
/// losses are those of one rank.
TEST(Fit, CopiesOfKeyValueHeadsLieInTheOrderOfTheMachine) {
  const auto config_of = [](int tp, const std::string& hardware) {
    RunConfig config = small_llama({.tp = tp}, "fp64", 3);
    config.model.num_kv_heads = 2;
    config.model.qkv_linear = true;
    config.model.fuse_qkv = false;
    config.distributed_strategy.kv_replicator = tp == 1 ? 1 : 2;
    config.hardware = hardware;
    return config;
  };
  const Training one = fit(config_of(1, "trn2"));
  for (const std::string hardware : {"trn1", "trn2"}) {
    const RunConfig config = config_of(4, hardware);
    const Training run = fit(config);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(run.steps[i].loss, one.steps[i].loss, 1e-10 * one.steps[i].loss);
    std::vector<at::Tensor> keys(4);
    runtime::WorldOptions world;
    world.world_size = 4;
    runtime::run_ranks(world, [&](runtime::RankContext& rank) {
      const Trainer trainer(config, rank, std::make_shared<RandomTokens>(config));
      for (const auto& [name, weight] : trainer.local_weights()) {
        if (name.ends_with("layers.0.self_attn.qkv_proj.weight_k"))
          keys[static_cast<std::size_t>(rank.rank())] = weight.tensor;
      }
    });
    ASSERT_TRUE(keys[0].defined());
    EXPECT_EQ(keys[0].equal(keys[1]), hardware == "trn2");
    EXPECT_EQ(keys[0].equal(keys[2]), hardware == "trn1");
  }
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
    EXPECT_THAT(
        error.what(),
        HasSubstr("trainer.limit_val_batches: validation has no schedule with virtual stages"));
  }
  EXPECT_EQ(fit(small_llama(layout, "fp64", 1)).steps.size(), 1U)
      << "without held-out data it trains";
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
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(*run.steps[i].parameter_norm, *one.steps[i].parameter_norm,
                1e-10 * *one.steps[i].parameter_norm);
}

TEST(Fit, MaxEpochsAndMaxTimeEndARun) {
  RunConfig config = small_llama({}, "fp32", 50);
  config.trainer.limit_train_batches = BatchCount{.count = 2, .fraction = {}};
  config.trainer.max_epochs = 2;
  Training run = fit(config);
  EXPECT_EQ(run.steps.size(), 4U);
  EXPECT_EQ(run.reason, StopReason::kMaxEpochs);

  for (const Layout& layout :
       {Layout{}, Layout{1, 2, 2, false, true}, Layout{1, 1, 4, false, true}}) {
    RunConfig timed = small_llama(layout, "fp32", 1000);
    timed.trainer.max_time_s = 0;
    run = fit(timed);
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
    config.exp_manager.early_stopping = {
        .min_delta = 100, .patience = 2, .stopping_threshold = {}, .divergence_threshold = {}};
    const Training run = fit(config, 1);
    EXPECT_EQ(run.steps.size(), 6U)
        << "the best value and two that are no better, every second step";
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

/// parallel_layers_reduce_dtype is visible in the loss; against the same model in fp64, on one
/// rank, both types are as right as bf16 is.
TEST(Fit, TheTypeOfSumsOverTensorParallelRanksChangesTheNumbers) {
  const auto losses = [](const Layout& layout, const std::string& type, const std::string& reduce) {
    RunConfig config = small_llama(layout, type, 3);
    config.precision.parallel_layers_reduce_dtype = reduce;
    std::vector<double> result;
    for (const StepResult& step : fit(config).steps) result.push_back(step.loss);
    return result;
  };
  const std::vector<double> exact = losses({}, "fp64", "fp64");
  for (const bool sequence_parallel : {false, true}) {
    const Layout layout{4, 1, 1, sequence_parallel, true};
    const std::vector<double> bf16 = losses(layout, "mixed_precision", "bf16"),
                              fp32 = losses(layout, "mixed_precision", "fp32");
    EXPECT_NE(bf16, fp32);
    EXPECT_EQ(bf16, losses(layout, "mixed_precision", "bf16")) << "the same bits again";
    for (std::size_t i = 0; i < exact.size(); ++i) {
      EXPECT_NEAR(bf16[i], exact[i], 0.02 * exact[i]);
      EXPECT_NEAR(fp32[i], exact[i], 0.02 * exact[i]);
    }
  }
}

TEST(Fit, TrackGradNormLogsAnotherNorm) {
  RunConfig config = small_llama({2, 1, 2, true, true}, "fp64", 2);
  std::map<double, double> norms;
  for (const double type : {1.0, 2.0, static_cast<double>(INFINITY)}) {
    config.trainer.track_grad_norm = type;
    const StepResult step = fit(config).steps[0];
    norms[type] = *step.tracked_grad_norm;
    EXPECT_EQ(step.scalars.at(tag_of_grad_norm(type)), norms[type]);
    if (type == 2) {
      EXPECT_EQ(step.grad_norm, norms[2]);
    }
  }
  EXPECT_GT(norms[1], norms[2]);
  EXPECT_GT(norms[2], norms[static_cast<double>(INFINITY)]);
  const double one_rank = [&] {
    RunConfig one = small_llama({}, "fp64", 1);
    one.trainer.track_grad_norm = 1;
    return *fit(one).steps[0].tracked_grad_norm;
  }();
  EXPECT_NEAR(norms[1], one_rank, 1e-10 * one_rank);
}

TEST(Fit, EarlyStoppingMonitorsAnyScalarOfTheStep) {
  for (const Layout& layout : {Layout{}, Layout{1, 2, 2, false, true}}) {
    for (const char* monitor :
         {"global_step", "consumed_samples", "lr", "gradient_norm", "host_made"}) {
      RunConfig config = small_llama(layout, "fp32", 50);
      config.model.optim.sched.reset();
      config.exp_manager.early_stopping = {.monitor = monitor,
                                           .min_delta = 1e9,
                                           .patience = 2,
                                           .stopping_threshold = {},
                                           .divergence_threshold = {}};
      std::vector<StopReason> reasons(static_cast<std::size_t>(config.world_size()));
      std::int64_t last = 0;
      runtime::WorldOptions world;
      world.world_size = config.world_size();
      runtime::run_ranks(world, [&](runtime::RankContext& rank) {
        Trainer trainer(config, rank, std::make_shared<RandomTokens>(config));
        reasons[static_cast<std::size_t>(rank.rank())] = trainer.fit([&](StepResult& step) {
          last = step.step;
          step.scalars["host_made"] = 1.0;  // as the program adds what only it knows
        });
      });
      EXPECT_EQ(last, 3) << monitor << ": the first value and two that are no better";
      for (const StopReason reason : reasons) EXPECT_EQ(reason, StopReason::kEarlyStopping);
    }
  }
  RunConfig config = small_llama({1, 1, 2, false, true}, "fp32", 5);
  config.exp_manager.early_stopping = {
      .monitor = "step_time_ms", .stopping_threshold = {}, .divergence_threshold = {}};
  EXPECT_THAT([&] { (void)fit(config); },
              testing::ThrowsMessage<ConfigError>(HasSubstr("step 1 logs no step_time_ms")))
      << "nothing is simulated here";
}

TEST(Fit, NothingEndsARunBeforeItsMinimum) {
  RunConfig config = small_llama({1, 2, 1, false, true}, "fp32", 50);
  config.exp_manager.early_stopping = {.monitor = "global_step",
                                       .patience = 1,
                                       .stopping_threshold = {},
                                       .divergence_threshold = {}};
  EXPECT_EQ(fit(config).steps.size(), 2U);
  config.trainer.min_steps = 7;
  Training run = fit(config);
  EXPECT_EQ(run.steps.size(), 7U);
  EXPECT_EQ(run.reason, StopReason::kEarlyStopping);

  config.exp_manager.early_stopping.reset();
  config.trainer.max_time_s = 0;
  config.trainer.min_steps.reset();
  config.trainer.limit_train_batches = BatchCount{.count = 2, .fraction = {}};
  config.trainer.min_epochs = 2;
  run = fit(config);
  EXPECT_EQ(run.steps.size(), 4U);
  EXPECT_EQ(run.reason, StopReason::kMaxTime);

  config.trainer.max_steps = -1;
  config.trainer.max_time_s.reset();
  config.trainer.max_epochs = 3;
  run = fit(config);
  EXPECT_EQ(run.steps.size(), 6U);
  EXPECT_EQ(run.reason, StopReason::kMaxEpochs);
}

}  // namespace
}  // namespace trellis::trainer
