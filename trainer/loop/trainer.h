#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/ranks/world.h"
#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"
#include "trainer/loop/step_result.h"
#include "trainer/modules/moe/routing_ledger.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

class FaultPlan;
class NeuronZero1Optimizer;
class ParallelState;
class RankLogs;
class TrainingCheckpoints;

/// The parallel sizes that a configuration asks for.
[[nodiscard]] ParallelSizes parallel_sizes(const RunConfig& config);

/// Hooks by which `trellis verify` and tests watch, or change, each rank of a run.
struct TrainerHooks {
  std::function<void(ParameterList&)> built;  ///< the model is there; the optimizer is not
  std::function<void(const NeuronZero1Optimizer&)>
      gradients_reduced;  ///< in each step, before they are clipped
};

/// Services that the ranks of a run share in addition to its data; each may be null.
struct TrainerServices {
  RankLogs* logs = nullptr;                    ///< the run's log files
  TrainingCheckpoints* checkpoints = nullptr;  ///< saves and restores; fit() starts with it
  RoutingLedger* routing = nullptr;            ///< counts what the routers of all ranks do
  std::string directory = {};                  ///< of the run's files; "": it keeps none
  const FaultPlan* faults = nullptr;           ///< what goes wrong on purpose
  std::int64_t check_replicas_every = 0;       ///< steps between comparisons of copies; 0: none
};

/// A pass over held-out data.
struct Evaluation {
  double loss = 0;  ///< mean over the labels that count, nats per token; the same on all ranks
  std::int64_t batches = 0;  ///< global ones
  double host_s = 0;         ///< of all of them
};

/// Why training ended.
enum class StopReason { kMaxSteps, kMaxEpochs, kMaxTime, kEarlyStopping, kInterrupted };
[[nodiscard]] const char* name_of(
    StopReason reason);  ///< max_steps, max_epochs, max_time, early_stopping, interrupted

/// Called on the first rank of each process after each step, when every rank has ended it. Rank 0's
/// result has all numbers; it may add to the scalars what else it logs.
using StepCallback = std::function<void(StepResult&)>;

/// One rank's training loop: data → pipeline schedule → gradients → clip → optimizer → learning
/// rate, and validation when it is due. Knows torch::Device only.
class Trainer {
 public:
  Trainer(const RunConfig& config, runtime::RankContext& rank,
          std::shared_ptr<const DataModule> data, TrainerServices services = {});
  /// The same with the caller's process groups; `parallel` must fit the configuration's sizes.
  Trainer(const RunConfig& config, runtime::RankContext& rank,
          std::shared_ptr<const DataModule> data, const ParallelState& parallel,
          TrainerHooks hooks = {}, TrainerServices services = {});
  ~Trainer();
  /// Trains to the end of the run, which every rank reaches after the same step for the same
  /// reason. Throws Error when the loss or
  /// the norm of the gradients is not finite: the step and the layer or parameter are named, the
  /// weights are those before the step.
  StopReason fit(const StepCallback& on_step);
  /// Lightning's trainer.test: one pass over the test data, trainer.limit_test_batches applied;
  /// none without test data. Throws ConfigError with virtual stages.
  std::optional<Evaluation> test();
  /// This rank's weights by global (un-sharded, un-staged) name, on the CPU; for tests and
  /// checkpoints: each value says how to gather it.
  struct LocalWeight {
    at::Tensor tensor;
    int partition_dim = -1;  ///< −1: replicated over TP
    int partition_stride =
        1;                ///< blocks that were sharded each for itself; join_shards() undoes it
    Partition partition;  ///< the same with replicated key/value heads
    ExpertRange experts;  ///< of experts' weights: which ones
  };
  [[nodiscard]] std::map<std::string, LocalWeight> local_weights() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trellis::trainer
