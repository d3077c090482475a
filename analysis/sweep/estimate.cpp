#include "analysis/sweep/estimate.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "analysis/sweep/stage_work.h"
#include "trainer/config/load/run_plan.h"
#include "trainer/config/schedule/schedule_timing.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using sim::CollectiveKind;
using trainer::RunConfig;

enum class Part { kLayer, kEmbedding, kHead, kRest };

Part part_of(const std::string& component) {
  if (component.find(".layers.*") != std::string::npos) return Part::kLayer;
  if (component.find("embed") != std::string::npos) return Part::kEmbedding;
  return component.empty() ? Part::kRest : Part::kHead;
}

/// Seconds by part and pass of one simulation; `other`: all phases that are neither.
struct PhaseTimes {
  std::map<Part, PassSeconds> passes;
  double other = 0;
};

PhaseTimes read_phases(const json& step) {
  PhaseTimes times;
  for (const json& row : step.at("attribution").at("rows")) {
    if (row.at("kind") == "comm_dp") continue;
    const double seconds = row.at("time_ps").get<double>() * 1e-12;
    const auto& phase = row.at("phase").get_ref<const std::string&>();
    PassSeconds& part = times.passes[part_of(row.at("component").get<std::string>())];
    (phase == "forward"    ? part.forward
     : phase == "backward" ? part.backward
                           : times.other) += seconds;
  }
  return times;
}

/// a + b micro-batches.
struct Line {
  PassSeconds each;
  double once = 0;
};

Line line_of(const PhaseTimes& two, const PhaseTimes& three, Part part) {
  const auto of = [part](const PhaseTimes& times) {
    const auto found = times.passes.find(part);
    return found == times.passes.end() ? PassSeconds{} : found->second;
  };
  const PassSeconds a = of(two), b = of(three);
  Line line;
  line.each = {std::max(0.0, b.forward - a.forward), std::max(0.0, b.backward - a.backward)};
  line.once =
      a.forward + a.backward - kProfileMicroBatches[0] * (line.each.forward + line.each.backward);
  return line;
}

std::int64_t picoseconds(double seconds) { return std::llround(seconds * 1e12); }

std::vector<trainer::PassCost> costs_of(const RunConfig& config, const StageProfile& p) {
  std::vector<trainer::PassCost> costs;
  const auto ranges = trainer::layers_of_stages(config);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const double layers = ranges[i].second - ranges[i].first;
    PassSeconds stage{layers * p.layer.forward + p.rest.forward,
                      layers * p.layer.backward + p.rest.backward};
    const auto add = [&stage](const PassSeconds& end) {
      stage = {stage.forward + end.forward, stage.backward + end.backward};
    };
    if (i == 0) add(p.embedding);
    if (i + 1 == ranges.size()) add(p.head);
    costs.push_back({picoseconds(stage.forward), picoseconds(stage.backward)});
  }
  return costs;
}

/// A stage's output on its way to the next stage's rank.
double transfer_seconds(const RunConfig& config, CollectiveTimes& times) {
  if (config.pp() == 1) return 0;
  const std::int64_t shards = config.distributed_strategy.sequence_parallel ? config.tp() : 1;
  return times.seconds(CollectiveKind::kSendRecv, 2, config.tp() * config.dp() * config.cp(),
                       hidden_bytes(config) / shards);
}

std::int64_t time_passes(const RunConfig& config, const std::vector<trainer::PassCost>& costs,
                         CollectiveTimes& times) {
  const trainer::PipelineShape shape{config.num_microbatches(), config.pp(), config.vpp()};
  return trainer::time_schedule(shape, costs, picoseconds(transfer_seconds(config, times))).end;
}

/// Seconds that DP adds to a rank's step: gradients after the last backward, then with ZeRO-1 the
/// weights after the update.
double exchange_seconds(const RunConfig& config, double parameters, double last_backward,
                        double update, CollectiveTimes& times) {
  const int members = config.dp() * config.cp();
  if (members == 1) return 0;
  const auto over_dp = [&](CollectiveKind kind, double bytes) {
    return bytes * times.busy_seconds_per_byte(kind, members, config.tp());
  };
  const double bytes = parameters * gradient_element_bytes(config);
  if (!config.distributed_strategy.zero1)
    return std::max(0.0, over_dp(CollectiveKind::kAllReduce, bytes) - last_backward);
  return std::max(0.0, over_dp(CollectiveKind::kReduceScatter, bytes) - last_backward) +
         std::max(0.0,
                  over_dp(CollectiveKind::kAllGather, parameters * weight_element_bytes(config)) -
                      update);
}

}  // namespace

Candidate profile_layout(const Candidate& candidate, int ranks_per_node) {
  Candidate profile = candidate;
  profile.pp = profile.vpp = 1;
  profile.dp = candidate.dp > 1 && candidate.pp == 1 ? 2 : 1;
  profile.nodes = std::max(1, candidate.tp * candidate.cp * profile.dp / ranks_per_node);
  return profile;
}

Candidate least_layout(const Candidate& profile, int ranks_per_node) {
  Candidate least = profile;
  least.recompute = trainer::Recompute::kNone;
  least.zero1 = true;
  least.dp = 1;
  return profile_layout(least, ranks_per_node);
}

std::vector<std::string> profile_overrides(const Candidate& profile, int ranks_per_node,
                                           int micro_batches) {
  std::vector<std::string> overrides =
      overrides_of(profile, std::min(profile.tp * profile.cp * profile.dp, ranks_per_node),
                   std::int64_t{micro_batches} * profile.micro_batch_size * profile.dp);
  overrides.emplace_back("model.num_layers=1");
  return overrides;
}

std::optional<StageProfile> read_profile(const json& two, const json& three, double parameters) {
  if (!two.contains("attribution") || !three.contains("attribution")) return std::nullopt;
  const PhaseTimes a = read_phases(two), b = read_phases(three);
  const Line layer = line_of(a, b, Part::kLayer), embedding = line_of(a, b, Part::kEmbedding),
             head = line_of(a, b, Part::kHead), rest = line_of(a, b, Part::kRest);
  StageProfile profile{layer.each, embedding.each, head.each,
                       rest.each,  layer.once,     embedding.once + head.once + rest.once,
                       0,          parameters};
  const double other_each = std::max(0.0, b.other - a.other);
  profile.update = a.other - kProfileMicroBatches[0] * other_each;
  profile.rest.backward += other_each;
  return profile;
}

double owned_parameters(const RunConfig& config, int rank) {
  const double owners = config.distributed_strategy.zero1 ? config.dp() * config.cp() : 1;
  return static_cast<double>(trainer::plan_run(config)
                                 .parameters_of_pipeline_rank[static_cast<std::size_t>(rank)]) /
         owners;
}

std::int64_t estimate_passes(const RunConfig& config, const StageProfile& profile,
                             CollectiveTimes& times) {
  return time_passes(config, costs_of(config, profile), times);
}

std::int64_t estimate_step(const RunConfig& config, const StageProfile& profile,
                           CollectiveTimes& times) {
  const std::vector<trainer::PassCost> costs = costs_of(config, profile);
  const trainer::RunPlan plan = trainer::plan_run(config);
  double after = 0;
  for (int rank = 0; rank < config.pp(); ++rank) {
    const auto parameters =
        static_cast<double>(plan.parameters_of_pipeline_rank[static_cast<std::size_t>(rank)]);
    double layers = 0;
    for (const auto& stage : plan.stages)
      layers += stage.pipeline_rank == rank ? stage.end_layer - stage.first_layer : 0;
    const double update = profile.update * owned_parameters(config, rank) / profile.parameters;
    const double last_backward =
        static_cast<double>(costs[static_cast<std::size_t>(rank)].backward) * 1e-12;
    const double once = layers * profile.layer_once +
                        (rank == 0 || rank + 1 == config.pp() ? profile.ends_once : 0);
    after = std::max(
        after, once + update + exchange_seconds(config, parameters, last_backward, update, times));
  }
  return time_passes(config, costs, times) + picoseconds(after);
}

}  // namespace trellis::analysis
