#include "trainer/app/job.h"

#include <chrono>
#include <string>

#include "base/error.h"
#include "base/launch.h"

namespace trellis::trainer {
namespace {

void refuse_in_processes(const RunConfig& config, int processes) {
  const auto refuse = [&](const std::string& what, const std::string& advice) {
    throw ConfigError(what + ": works in one process only, got " + std::to_string(processes) +
                      ": " + advice);
  };
  const ExpManagerSection& manager = config.exp_manager;
  if (manager.checkpoints.create)
    refuse("exp_manager.create_checkpoint_callback: true", "set it to false, or start one process");
  if (manager.checkpoints.resume_if_exists || !manager.checkpoints.resume_from_checkpoint.empty())
    refuse("resuming (exp_manager.resume_if_exists, resume_from_checkpoint)",
           "start one process to resume");
  if (config.model.moe) refuse("model.moe", "start one process");
  if (config.alignment == "dpo")
    refuse("model_alignment_strategy.dpo", "start one process, or use orpo");
}

}  // namespace

std::unique_ptr<runtime::ProcessLink> join_job(const RunRequest& request, const RunConfig& config) {
  const std::optional<Launch> launch = find_launch(process_environment);
  if (!launch) return nullptr;
  refuse_in_processes(config, launch->processes);
  if (config.world_size() % launch->processes != 0) {
    throw ConfigError(launch->launcher + " started " + std::to_string(launch->processes) +
                      " processes: expected a number that divides the " +
                      std::to_string(config.world_size()) +
                      " ranks of trainer.devices × trainer.num_nodes, because each process runs as "
                      "many ranks: change one of them");
  }
  const std::chrono::milliseconds patience(static_cast<std::int64_t>(request.timeout_s * 1000));
  return std::make_unique<runtime::ProcessLink>(
      *launch, patience,
      std::vector<std::pair<std::string, std::string>>{
          {"version of trellis", TRELLIS_VERSION},
          {"--device", request.device},
          {"seed", std::to_string(config.seed)},
          {"resolved configuration", "\n" + config.resolved_yaml}});
}

}  // namespace trellis::trainer
