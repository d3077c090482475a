#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/ranks/world.h"
#include "trainer/app/prepare/load_device.h"
#include "trainer/config/run_config.h"
#include "trainer/parallel_layers/parallel_state.h"
#include "trainer/parallel_layers/parameter.h"
#include "trainer/pipeline/stage.h"

namespace trellis::trainer {

/// Passes over a model as the machine model times them, each as a separate program.
struct TimedPasses {
  std::map<std::int64_t, double> ms;  ///< by number
  std::set<std::string> estimated;    ///< operators without a lowering
};

/// One rank's model without values.
class ShapeOnlyModel {
 public:
  ShapeOnlyModel(const RunConfig& config, runtime::RankContext& rank);
  /// All ranks call it after a pass, which is simulated when all have.
  void end_pass(std::int64_t pass);

  const RunConfig& config;
  ParallelState parallel;
  ParameterList parameters;
  ModuleContext context;
  std::vector<std::unique_ptr<PipelineStage>> stages;
  runtime::RankContext& rank;
  std::function<void(std::int64_t pass)> simulate;
};

/// Executes `body` without weights on the emulated machine of `choice`, on one rank of each class
/// of equal ones. Throws Error(kOutOfMemory) and what `body` throws.
[[nodiscard]] TimedPasses time_passes(DeviceChoice choice, const RunConfig& config,
                                      int host_threads,
                                      const std::function<void(ShapeOnlyModel&)>& body);

}  // namespace trellis::trainer
