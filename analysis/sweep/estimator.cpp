#include "analysis/sweep/estimator.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "trainer/config/run_config.h"

namespace trellis::analysis {

Estimator::Estimator(const SweepSpace& space, std::vector<SweepRow>& rows)
    : space_(space), rows_(rows), file_(space.request.config) {
  const auto open = std::ranges::find(rows, SweepStatus::kOpen, &SweepRow::status);
  mixture_ = open != rows.end() && file_.check(space.overrides(open->candidate)).config.model.moe;
}

Estimator::Step Estimator::advance(SweepRow& row) {
  // Gathers of fully sharded weights depend on DP, which a short simulation has less of.
  if (mixture_ || row.candidate.fsdp) return Step::kNothing;
  const Candidate own = profile_layout(row.candidate, space_.space.ranks_per_node);
  Bounds& before = bounds_[static_cast<std::size_t>(&row - rows_.data())];
  while (before.size() < 2) {
    const bool last = before.size() == 1;
    Profile& profile = profile_of(last ? own : least_layout(own, space_.space.ranks_per_node));
    if (profile.answered < profile.reports.size()) {
      profile.waiting.push_back(&row);
      return Step::kWaits;
    }
    before.push_back(row.bound_ps);
    if (!profile.times) continue;
    raise(row, *profile.times, last);
    return Step::kRaised;
  }
  return Step::kNothing;
}

Estimator::Profile& Estimator::profile_of(const Candidate& layout) {
  const auto [known, is_new] = known_.emplace(layout, profiles_.size());
  if (is_new) profiles_.emplace_back().layout = layout;
  return profiles_[known->second];
}

std::vector<std::string> Estimator::overrides(const Profile& profile, int micro_batches) const {
  std::vector<std::string> all = space_.request.overrides;
  for (std::string& text :
       profile_overrides(profile.layout, space_.space.ranks_per_node, micro_batches))
    all.push_back(std::move(text));
  return all;
}

std::optional<Estimator::Question> Estimator::next_question() {
  if (asked_ == 2 * profiles_.size()) return std::nullopt;
  const Profile& profile = profiles_[asked_ / 2];
  Question question{asked_,
                    {{.config_file = space_.request.config,
                      .overrides = overrides(profile, kProfileMicroBatches[asked_ % 2]),
                      .instance = space_.request.instance,
                      .nodes = profile.layout.nodes},
                     /*whole=*/false}};
  ++asked_;
  return question;
}

std::vector<SweepRow*> Estimator::answer(const ChildProcesses::Result& result) {
  Profile& profile = profiles_[result.key / 2];
  if (result.exit_code == 0) profile.reports[result.key % 2] = result.out;
  if (++profile.answered < profile.reports.size()) return {};
  log_info(fmt::format("short simulations for estimates: {}", to_string(profile.layout)));
  read(profile);
  return std::exchange(profile.waiting, {});
}

void Estimator::read(Profile& profile) const {
  if (std::ranges::any_of(profile.reports, &std::string::empty)) return;
  const trainer::RunConfig config = file_.check(overrides(profile, kProfileMicroBatches[0])).config;
  const auto step = [&](std::size_t i) {
    return nlohmann::json::parse(profile.reports[i]).at("simulated");
  };
  profile.times = read_profile(step(0), step(1), owned_parameters(config, 0));
  profile.reports = {};
}

TimedMachine& Estimator::machine_of(int nodes, const trainer::RunConfig& config) {
  std::unique_ptr<TimedMachine>& machine = machines_[nodes];
  if (!machine) {
    sim::LoadOptions load;
    load.nodes = nodes;
    load.logical_core_size = config.trainer.lnc;
    load.software = config.software;
    machine = std::make_unique<TimedMachine>(sim::load_system(space_.request.instance, load));
  }
  return *machine;
}

void Estimator::raise(SweepRow& row, const StageProfile& times, bool own) {
  const trainer::RunConfig config = file_.check(space_.overrides(row.candidate)).config;
  TimedMachine& machine = machine_of(row.candidate.nodes, config);
  const std::int64_t time = (own ? estimate_step(config, times, machine.times)
                                 : estimate_passes(config, times, machine.times)) +
                            machine.system.software.step_overhead.value;
  if (own) row.estimate_ps = time;
  row.bound_ps = std::max(
      row.bound_ps, static_cast<std::int64_t>(static_cast<double>(time) * (1 - kEstimateRange)));
}

void Estimator::forget_needless(std::size_t top) {
  std::map<int, std::optional<std::int64_t>> limits;
  for (const int nodes : space_.space.nodes) limits[nodes] = time_to_beat(rows_, nodes, top);
  for (const auto& [index, before] : bounds_) {
    SweepRow& row = rows_[index];
    const auto limit = limits.at(row.candidate.nodes);
    const auto enough =
        std::ranges::find_if(before, [&](std::int64_t bound) { return limit && bound > *limit; });
    if (enough == before.end()) continue;
    row.bound_ps = *enough;
    row.estimate_ps = 0;
  }
}

}  // namespace trellis::analysis
