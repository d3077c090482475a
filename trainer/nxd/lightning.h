#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "runtime/ranks/world.h"
#include "trainer/config/lr_scheduler.h"
#include "trainer/nxd/neuron_hooks_callback.h"
#include "trainer/nxd/nxd_model.h"
#include "trainer/nxd/nxd_optimizer.h"

namespace trellis::traces {
class TensorBoardWriter;
}

namespace trellis::trainer {

/// NeuronLTModule's arguments. Optimizer class, scheduler class and their keyword arguments are the
/// records of the configuration.
struct LTModuleArguments {
  NxDConfig nxd_config = {};
  ModelFunction model_fn = {};
  OptimSection optim = {};     ///< its `sched` is the scheduler
  std::int64_t max_steps = 1;  ///< optimizer steps; also the scheduler's length
  int train_batch_size = 16;   ///< rows of a batch of one data-parallel rank
  int grad_accum_steps =
      1;  ///< batches per optimizer step; with PP the pipeline's micro-batches do this
  int logging_interval = 1;
  bool log_rank0 =
      false;  ///< the metrics of the last stage go to rank 0, which costs a communication
  bool manual_opt = true;  ///< the only mode that works
};

/// Result of a step. Only the ranks that log have the loss.
struct LTStep {
  std::int64_t step = 0;  ///< from 1
  std::optional<double> loss, grad_norm;
  double lr = 0;
};

/// Model, optimizer and schedule of one rank, stepped by hand.
class NeuronLTModule {
 public:
  /// Throws ConfigError: manual_opt off, grad_accum_steps with pipeline stages, an accumulation or
  /// interval below 1.
  explicit NeuronLTModule(LTModuleArguments arguments);
  void setup(runtime::RankContext& rank);  ///< builds the model
  void configure_optimizers();
  /// One batch: forward and backward, and after the last of grad_accum_steps the optimizer and the
  /// schedule; then what the step produced.
  std::optional<LTStep> training_step(const MicroBatch& batch);
  [[nodiscard]] NxDModel& model() { return *model_; }
  [[nodiscard]] const NxDModel& model() const { return *model_; }
  [[nodiscard]] NxDOptimizer& optimizer() { return *optimizer_; }
  [[nodiscard]] const NxDOptimizer& optimizer() const { return *optimizer_; }
  [[nodiscard]] const LTModuleArguments& arguments() const { return arguments_; }
  /// True if this rank shows progress and writes logs: it has data and tensor rank 0 in the last
  /// stage, or in the first stage with log_rank0.
  [[nodiscard]] bool is_logging_rank() const;

 private:
  LTModuleArguments arguments_;
  LrScheduler scheduler_;
  std::unique_ptr<NxDModel> model_;
  std::unique_ptr<NxDOptimizer> optimizer_;
  std::vector<MicroBatch> accumulated_;
};

/// How data are dealt to ranks: Lightning's sampler arguments.
struct SamplerArguments {
  int num_replicas = 1, rank = 0;
};

/// Starts the ranks and their groups.
class NeuronXLAStrategy {
 public:
  /// The sizes count only without an nxd_config. `world`: device, plugin, threads; its world_size
  /// is the number of ranks. `save_load_xser`: checkpoints have a file per tensor.
  explicit NeuronXLAStrategy(runtime::WorldOptions world, std::optional<NxDConfig> nxd_config = {},
                             int tensor_parallel_size = 1, int pipeline_parallel_size = 1,
                             bool save_load_xser = true);
  [[nodiscard]] const NxDConfig& nxd_config() const { return config_; }
  [[nodiscard]] bool save_load_xser() const { return save_load_xser_; }
  void launch(const std::function<void(runtime::RankContext&)>& body) const;
  [[nodiscard]] static SamplerArguments distributed_sampler_kwargs(const ParallelState& parallel);

 private:
  runtime::WorldOptions world_;
  NxDConfig config_;
  bool save_load_xser_;
};

/// Which type weights and activations have: bf16 when mixed precision is enabled, else what the
/// configuration says.
struct NeuronXLAPrecisionPlugin {
  bool mixed_precision_enabled = false;
  [[nodiscard]] NxDConfig applied_to(NxDConfig config) const;
};

/// A line per logged step, on the logging rank only.
class NeuronTQDMProgressBar {
 public:
  explicit NeuronTQDMProgressBar(std::ostream& out) : out_(out) {}
  void on_step(const LTStep& step, std::int64_t max_steps);

 private:
  std::ostream& out_;
};

/// TensorBoard scalars loss, lr, grad_norm, on the logging rank only.
class NeuronTensorBoardLogger {
 public:
  explicit NeuronTensorBoardLogger(const std::filesystem::path& save_dir);
  ~NeuronTensorBoardLogger();
  void on_step(const LTStep& step);
  /// Safe for several threads.
  void scalar(const std::string& tag, std::int64_t step, double value);

 private:
  std::mutex mutex_;
  std::unique_ptr<traces::TensorBoardWriter> writer_;
};

/// A batch of one data-parallel rank, on the CPU. `index` counts a rank's batches from 0.
using BatchSource = std::function<MicroBatch(std::int64_t index, const SamplerArguments& sampler)>;

/// Functions that every rank calls during a training: checkpoints (NeuronCheckpointIO::callback).
struct LightningCallback {
  /// Called before the first step: the module may continue from the state of another training.
  std::function<void(runtime::RankContext& rank, NeuronLTModule& module)> on_fit_start = {};
  std::function<void(runtime::RankContext& rank, NeuronLTModule& module, const LTStep& step)>
      on_train_step_end = {};
};

/// Lightning's trainer, as much of it as NxD uses: fit.
class LightningTrainer {
 public:
  LightningTrainer(NeuronXLAStrategy strategy, NeuronXLAPrecisionPlugin precision = {})
      : strategy_(std::move(strategy)), precision_(precision) {}
  /// They are called on the logging rank. REQUIRES: they outlive fit().
  LightningTrainer& callback(NeuronTQDMProgressBar& bar);
  LightningTrainer& logger(NeuronTensorBoardLogger& logger);
  /// It works on every rank. REQUIRES: it outlives fit().
  LightningTrainer& callback(const NeuronHooksCallback& hooks);
  LightningTrainer& callback(LightningCallback callback);
  /// Trains up to step max_steps; the module's nxd_config is the strategy's. Every step goes to
  /// `on_step` on the logging rank.
  void fit(LTModuleArguments arguments, const BatchSource& data,
           const std::function<void(const LTStep&)>& on_step = {}) const;

 private:
  NeuronXLAStrategy strategy_;
  NeuronXLAPrecisionPlugin precision_;
  std::vector<LightningCallback> callbacks_;
  NeuronTQDMProgressBar* bar_ = nullptr;
  NeuronTensorBoardLogger* logger_ = nullptr;
  const NeuronHooksCallback* hooks_ = nullptr;
};

}  // namespace trellis::trainer
