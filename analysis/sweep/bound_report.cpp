#include "analysis/sweep/bound_report.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/number_text.h"
#include "traces/report/text_table.h"
#include "trainer/config/check_fits_machine.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/machine.h"
#include "trainer/config/run_config.h"

namespace trellis::analysis {

BoundReport bound_report(const std::string& config_file, const std::vector<std::string>& overrides,
                         const std::string& instance, int nodes,
                         const std::vector<std::string>& hardware, bool calibrated) {
  const trainer::RunConfig config = trainer::load_run_config(config_file, overrides, instance);
  trainer::refuse_unsupported(config, true);
  sim::LoadOptions load;
  load.nodes = nodes;
  load.overrides = hardware;
  load.calibrated = calibrated;
  const sim::SystemConfig system = trainer::load_machine(config, instance, load);
  trainer::check_fits_machine(config, system);
  CollectiveTimes times(system);
  BoundReport report;
  report.name = config.name;
  report.instance = instance;
  report.nodes = nodes;
  report.parameters = config.num_parameters();
  report.step = bound_step(config, system, times);
  report.bytes = bound_memory(config);
  report.capacity_bytes = system.hbm_per_logical_core().value;
  const double seconds = static_cast<double>(report.step.step_ps) * 1e-12;
  report.tokens_per_s = static_cast<double>(config.tokens_per_step()) / seconds;
  report.mfu = config.model_flops_per_step() /
               (seconds * config.world_size() * system.peak_per_logical_core().value);
  return report;
}

nlohmann::json bound_json(const BoundReport& r) {
  return {{"schema", "trellis.bounds/1"},
          {"name", r.name},
          {"instance", r.instance},
          {"nodes", r.nodes},
          {"parameters", r.parameters},
          {"step_time_least_ps", r.step.step_ps},
          {"bound_by", r.step.largest},
          {"pipeline_s", r.step.pipeline_s},
          {"bubble_s", r.step.bubble_s},
          {"optimizer_s", r.step.optimizer_s},
          {"gradients_s", r.step.gradients_s},
          {"tokens_per_s_most", r.tokens_per_s},
          {"mfu_most", r.mfu},
          {"memory_least_bytes", r.bytes},
          {"capacity_bytes", r.capacity_bytes},
          {"may_fit", r.fits()}};
}

std::string bound_text(const BoundReport& r) {
  const auto ms = [](double seconds) { return milliseconds_text(std::llround(seconds * 1e12)); };
  return fmt::format(
      "bounds of {}: {} parameters on {} × {}; nothing was simulated\n"
      "Step at least {}, by {}: at most {} tokens/s, MFU {:.1f} %\n"
      "  pipeline {} (of it bubble {}), optimizer {}; gradients {}, which the rest may hide\n"
      "Memory of the fullest rank at least {} of {}: {}\n"
      "No simulation of this step is faster or takes less. `trellis simulate` without --fast says "
      "how much more it is\n",
      r.name, thousands(r.parameters), r.nodes, r.instance, milliseconds_text(r.step.step_ps),
      r.step.largest, rate_text(r.tokens_per_s), 100 * r.mfu, ms(r.step.pipeline_s),
      ms(r.step.bubble_s), ms(r.step.optimizer_s), ms(r.step.gradients_s), human_bytes(r.bytes),
      human_bytes(r.capacity_bytes), r.fits() ? "it may fit" : "it does NOT FIT");
}

}  // namespace trellis::analysis
