#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/world.h"
#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"

namespace trellis::trainer {

class ParallelState;

/// What a step produced on a rank; loss and grad_norm are the same on all ranks.
struct StepResult {
  std::int64_t step = 0;  ///< from 1
  double loss = 0;        ///< mean over the global batch, nats per token
  double grad_norm = 0;   ///< before clipping
  double lr = 0;
};

/// Called on rank 0 after each step, when every rank has ended it.
using StepCallback = std::function<void(const StepResult&)>;

/// One rank's training loop: data → pipeline schedule → gradients → clip → optimizer → learning rate. Knows torch::Device only.
class Trainer {
 public:
  Trainer(const RunConfig& config, runtime::RankContext& rank, std::shared_ptr<const DataModule> data);
  /// With process groups of the caller's; `parallel` must fit the configuration's sizes.
  Trainer(const RunConfig& config, runtime::RankContext& rank, std::shared_ptr<const DataModule> data, const ParallelState& parallel);
  ~Trainer();
  void fit(const StepCallback& on_step);
  /// This rank's weights by global (un-sharded, un-staged) name, on the CPU; for tests and checkpoints: each value says how to gather it.
  struct LocalWeight {
    at::Tensor tensor;
    int partition_dim = -1;  ///< −1: replicated over TP
    int partition_stride = 1;  ///< blocks that were sharded each for itself; join_shards() undoes it
  };
  [[nodiscard]] std::map<std::string, LocalWeight> local_weights() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trellis::trainer
