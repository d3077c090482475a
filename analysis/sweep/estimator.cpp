#include "analysis/sweep/estimator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"
#include "base/log.h"
#include "analysis/sweep/child_processes.h"
#include "analysis/sweep/estimate.h"
#include "sim/config/system_config.h"
#include "trainer/config/run_config.h"
#include "trainer/config/run_config_file.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;

struct Profile {
  Candidate layout;
  std::array<json, 2> steps;  ///< of the two simulations; null: not there
  std::optional<StageProfile> times;
};

std::vector<std::string> overrides_of_profile(const SweepSpace& space, const Profile& profile,
                                              int micro_batches) {
  std::vector<std::string> all = space.request.overrides;
  for (std::string& text :
       profile_overrides(profile.layout, space.space.ranks_per_node, micro_batches))
    all.push_back(std::move(text));
  return all;
}

StepQuestion question_of(const SweepSpace& space, const Profile& profile, int micro_batches) {
  return {.config = space.request.config,
          .overrides = overrides_of_profile(space, profile, micro_batches),
          .instance = space.request.instance,
          .nodes = profile.layout.nodes,
          .whole = false};
}

/// Runs the two simulations of every profile.
void simulate(const SweepSpace& space, std::vector<Profile>& profiles, std::size_t jobs,
              const std::filesystem::path& scratch) {
  ChildProcesses children(scratch);
  const std::size_t count = 2 * profiles.size();
  Activity activity("short simulations for estimates");
  for (std::size_t next = 0, done = 0; done < count;) {
    while (next < count && children.running() < jobs && !ChildProcesses::stop_requested()) {
      children.start(next, question_of(space, profiles[next / 2], kProfileMicroBatches[next % 2]));
      ++next;
    }
    const auto result = children.running() == 0 ? std::nullopt : children.wait();
    if (!result)
      throw Error(ExitCode::kInterrupted,
                  "interrupted while layouts were estimated; estimates are not kept");
    activity.count(static_cast<std::int64_t>(++done), static_cast<std::int64_t>(count));
    Profile& profile = profiles[result->key / 2];
    if (result->exit_code == 0)
      profile.steps[result->key % 2] = json::parse(result->out).at("simulated");
    log_info(fmt::format("{:>4} of {} short simulations for estimates: {}", done, count,
                         to_string(profile.layout)));
  }
}

void read(const SweepSpace& space, const trainer::RunConfigFile& file, Profile& profile) {
  if (profile.steps[0].is_null() || profile.steps[1].is_null()) return;
  const trainer::RunConfig config =
      file.check(overrides_of_profile(space, profile, kProfileMicroBatches[0])).config;
  profile.times = read_profile(profile.steps[0], profile.steps[1], owned_parameters(config, 0));
}

/// Gathers of fully sharded weights depend on DP, which a short simulation has less of.
bool is_estimated(const SweepRow& row) {
  return row.status == SweepStatus::kOpen && !row.candidate.fsdp;
}

}  // namespace

std::size_t estimate_rows(const SweepSpace& space, std::vector<SweepRow>& rows, std::size_t jobs,
                          const std::filesystem::path& scratch) {
  const trainer::RunConfigFile file(space.request.config);
  const auto open = std::ranges::find(rows, SweepStatus::kOpen, &SweepRow::status);
  if (open == rows.end() || file.check(space.overrides(open->candidate)).config.model.moe)
    return 0;  // experts are not estimated
  std::map<Candidate, std::size_t> known;
  std::vector<Profile> profiles;
  for (const SweepRow& row : rows) {
    if (!is_estimated(row)) continue;
    const Candidate layout = profile_layout(row.candidate, space.space.ranks_per_node);
    if (known.emplace(layout, profiles.size()).second) profiles.push_back({layout, {}, {}});
  }
  simulate(space, profiles, jobs, scratch);
  for (Profile& profile : profiles) read(space, file, profile);
  std::map<int, std::pair<sim::SystemConfig, std::unique_ptr<CollectiveTimes>>> machines;
  Activity activity("estimating layouts");
  for (SweepRow& row : rows) {
    activity.count(&row - rows.data(), static_cast<std::int64_t>(rows.size()));
    if (!is_estimated(row)) continue;
    const auto& times =
        profiles[known.at(profile_layout(row.candidate, space.space.ranks_per_node))].times;
    const trainer::RunConfig config = file.check(space.overrides(row.candidate)).config;
    if (!times) continue;
    auto& machine = machines[row.candidate.nodes];
    if (!machine.second) {
      sim::LoadOptions load;
      load.nodes = row.candidate.nodes;
      load.logical_core_size = config.trainer.lnc;
      load.software = sim::software_profile(config.software).value().stack;
      machine.first = sim::load_system(space.request.instance, load);
      machine.second = std::make_unique<CollectiveTimes>(machine.first);
    }
    row.estimate_ps = estimate_step(config, *times, *machine.second) +
                      machine.first.software.step_overhead().value;
    row.bound_ps = std::max(
        row.bound_ps,
        static_cast<std::int64_t>(static_cast<double>(row.estimate_ps) * (1 - kEstimateRange)));
  }
  return 2 * profiles.size();
}

}  // namespace trellis::analysis
