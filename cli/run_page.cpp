#include "cli/run_page.h"

#include <filesystem>

#include "cli/schedule/schedule_drawing.h"
#include "trainer/config/run_config.h"
#include "trainer/report/report_page.h"

namespace trellis::cli {

namespace {

nlohmann::json schedule_of(const trainer::ReportFile& run) {
  const std::filesystem::path hparams = run.path.parent_path() / "hparams.yaml";
  if (!std::filesystem::exists(hparams)) return nullptr;
  const trainer::RunConfig config = trainer::load_run_config(hparams, {});
  const SchedulePlan plan = stages_by_report(config, run, config);
  return schedule_json(plan, trainer::time_schedule(plan.shape, plan.costs));
}

}  // namespace

std::string run_page(const trainer::ReportFile& run) { return trainer::report_page(run, schedule_of(run)); }

}  // namespace trellis::cli
