#include "trainer/app/prepare/job.h"

#include <chrono>
#include <string>

#include "base/error.h"
#include "base/process/launch.h"
#include "runtime/ranks/world.h"

namespace trellis::trainer {

std::unique_ptr<runtime::ProcessLink> join_job(const RunRequest& request, const RunConfig& config) {
  const std::optional<Launch> launch = find_launch(process_environment);
  if (!launch) return nullptr;
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
          {"--backend", request.backend},
          {"seed", std::to_string(config.seed)},
          {"resolved configuration", "\n" + config.resolved_yaml}});
}

void check_equal_start(runtime::ProcessLink& link, const std::string& address) {
  const std::string first = link.from_first("checkpoint to resume", address);
  if (address == first) return;
  const auto text = [](const std::string& found) {
    return found.empty() ? "no checkpoint" : found;
  };
  throw ConfigError("process " + std::to_string(link.process()) + " found " + text(address) +
                    " to go on from, process 0 found " + text(first) +
                    ": expected the same everywhere: keep checkpoints in a folder that all hosts "
                    "share, or at s3://");
}

bool agree_on_sigterm(runtime::RankContext& rank, bool came_here) {
  runtime::ProcessLink* const link = rank.link();
  if (link == nullptr) return came_here;
  constexpr const char* kFlag = "SIGTERM";
  if (came_here) link->raise_flag(kFlag);
  rank.host_barrier();
  return link->is_raised(kFlag);
}

}  // namespace trellis::trainer
