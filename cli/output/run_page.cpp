#include "cli/output/run_page.h"

#include <filesystem>

#include "analysis/schedule/schedule_drawing.h"
#include "traces/report/report_page.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"

namespace trellis::cli {

namespace {

nlohmann::json schedule_of(const analysis::ReportFile& run) {
  const std::filesystem::path hparams = run.path.parent_path() / "hparams.yaml";
  if (!std::filesystem::exists(hparams)) return nullptr;
  const trainer::RunConfig config = trainer::load_run_config(hparams, {});
  const analysis::SchedulePlan plan = analysis::stages_by_report(config, run, config);
  return analysis::schedule_json(plan, trainer::time_schedule(plan.shape, plan.costs));
}

}  // namespace

std::string run_page(const analysis::ReportFile& run) {
  return analysis::report_page(run, schedule_of(run));
}

}  // namespace trellis::cli
