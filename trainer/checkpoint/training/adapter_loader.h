#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/checkpoint/state/live_state.h"
#include "trainer/checkpoint/training/source_loader.h"
#include "trainer/config/run_config.h"
#include "trainer/files/checkpoint/adapters/fitted_adapter.h"

namespace trellis::checkpoint {

/// The un-sharded tensors that fine-tuning with adapters trains: adapters, whole modules, biases.
/// Independent of the layout.
[[nodiscard]] std::vector<adapters::TrainedTensor> trained_tensors(
    const trainer::RunConfig& config);

/// Starts the adapters of a training, of any layout, as load_lora_from_ckpt says. The ranks of a
/// process share one.
class AdapterLoader {
 public:
  /// Throws ConfigError as find_adapter() and FittedAdapter, before a rank runs.
  explicit AdapterLoader(const trainer::RunConfig& config);
  [[nodiscard]] const std::string& address() const { return loader_->source().address(); }
  /// Collective. Fills the trained part of `live`: weights, masters, moving averages. `live` need
  /// not have optimizer states.
  void load(runtime::RankContext& rank, const trainer::ParameterList& parameters, LiveState live);

 private:
  std::unique_ptr<SourceLoader> loader_;
};

}  // namespace trellis::checkpoint
