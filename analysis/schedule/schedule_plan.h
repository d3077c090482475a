#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "traces/report/report_file.h"
#include "trainer/config/run_config.h"
#include "trainer/config/schedule/balance.h"
#include "trainer/config/schedule/schedule_timing.h"

/// The input of `trellis schedule`: a schedule, and the costs that it is drawn with.
namespace trellis::analysis {

struct SchedulePlan {
  trainer::PipelineShape shape;
  std::string costs_from;  ///< "equal stages", "FLOPs of the model", "times of runs/a/report.json"
  bool in_time = false;    ///< costs are picoseconds; otherwise relative: shares of the step mean
                           ///< something, their unit nothing
  double backward_ratio = 2;                ///< of a backward to its forward
  std::vector<trainer::PassCost> costs;     ///< per virtual stage
  std::vector<trainer::LayerRange> layers;  ///< per virtual stage; empty without a model
  std::optional<trainer::LayerCosts> layer_costs;
  std::string layer_prefix;  ///< "model.layers": what pipeline_cuts name
  std::optional<std::int64_t>
      measured_step_ps;     ///< of the report, when its pipeline is the one drawn
  nlohmann::json validity;  ///< of that report's step; null without one
  std::int64_t outside_passes_ps =
      0;  ///< of that step: DP communication and optimizer, which no pass holds
};

/// Equal stages: a forward of a whole rank costs 1,000,000.
[[nodiscard]] SchedulePlan equal_stages(const trainer::PipelineShape& shape, double backward_ratio);
/// Stages by the FLOPs of their layers and of the head. `backward_ratio`: none: 2, and 3 when all
/// layers are recomputed.
[[nodiscard]] SchedulePlan stages_by_flops(const trainer::RunConfig& config,
                                           std::optional<double> backward_ratio);
/// Stages by the times of a run: where its pipeline and its cuts are the configuration's, each
/// stage's own; otherwise from the time of a layer, of the embedding and of the head. Throws
/// ConfigError when the report is of another model.
[[nodiscard]] SchedulePlan stages_by_report(const trainer::RunConfig& config, const ReportFile& run,
                                            const trainer::RunConfig& config_of_run);

/// The same model with other layers per stage.
[[nodiscard]] SchedulePlan with_layers(const SchedulePlan& plan,
                                       const std::vector<trainer::LayerRange>& layers);

}  // namespace trellis::analysis
