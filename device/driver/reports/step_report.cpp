#include "device/driver/reports/step_report.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "device/driver/reports/attribution.h"

namespace trellis::device {

namespace {

/// Classes of ranks whose steps are attributed: a pipeline has fewer stages.
constexpr std::size_t kMostAttributed = 64;

nlohmann::json to_json(const Breakdown& b) {
  return {{"matmul_ps", b.matmul.value},         {"other_compute_ps", b.other_compute.value},
          {"exposed_tp_ps", b.exposed_tp.value}, {"exposed_pp_ps", b.exposed_pp.value},
          {"exposed_dp_ps", b.exposed_dp.value}, {"exposed_cp_ps", b.exposed_cp.value},
          {"exposed_ep_ps", b.exposed_ep.value}, {"bubble_ps", b.bubble.value},
          {"optimizer_ps", b.optimizer.value},   {"data_ps", b.data.value},
          {"launch_ps", b.launch.value},         {"host_ps", b.host.value},
          {"multi_node_ps", b.multi_node.value}, {"other_ps", b.other.value},
          {"total_ps", b.total().value},         {"memory_bound_ps", b.memory_bound.value}};
}

nlohmann::json attribution_json(const StepTiming& step, const Attribution& attribution) {
  nlohmann::json rows = nlohmann::json::array();
  for (const AttributionRow& row : attribution.rows) {
    rows.push_back({{"phase", row.phase},
                    {"component", row.component},
                    {"operator", row.op},
                    {"kind", row.kind},
                    {"time_ps", row.time.value},
                    {"count", row.count}});
  }
  return {{"rank", step.world_rank(attribution.rank)}, {"rows", std::move(rows)}};
}

/// Attribution of the rank that ends last; `other_ranks`: of one rank of each other class.
nlohmann::json attributions_json(const StepTiming& step,
                                 const std::vector<Attribution>& attributions) {
  if (attributions.empty()) return attribution_json(step, {});
  nlohmann::json all = attribution_json(step, attributions.front());
  nlohmann::json& others = all["other_ranks"] = nlohmann::json::array();
  for (std::size_t i = 1; i < attributions.size(); ++i)
    others.push_back(attribution_json(step, attributions[i]));
  return all;
}

/// By program: how often it is launched, on all ranks.
std::vector<std::int64_t> count_launches(const StepTiming& step) {
  std::vector<std::int64_t> launches(step.programs.size(), 0);
  for (std::size_t rank = 0; rank < step.job.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < step.job.ranks[rank].size(); ++i) {
      if (step.job.ranks[rank][i].kind == ScheduleItem::Kind::kLaunch)
        launches[step.origins[rank][i].program] += step.job.fold.represents(static_cast<int>(rank));
    }
  }
  return launches;
}

nlohmann::json programs_json(const StepTiming& step, const std::vector<std::int64_t>& launches) {
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < step.programs.size(); ++i) {
    const TimedProgram& program = *step.programs[i];
    Picoseconds busy(0);
    std::int64_t kernels = 0, instructions = 0, pieces = 0;
    std::set<const TimedPiece*> distinct;
    for (const TimedProgram::Step& s : program.steps) {
      if (s.piece == nullptr) continue;
      busy += s.piece->segment().duration;
      kernels += static_cast<std::int64_t>(s.piece->kernels.size());
      instructions += s.piece->instructions;
      ++pieces;
      distinct.insert(s.piece);
    }
    list.push_back({{"name", program.name},
                    {"hash", program.hash.to_string()},
                    {"launches", launches[i]},
                    {"device_time_us", to_microseconds(busy)},
                    {"pieces", pieces},
                    {"distinct_pieces", distinct.size()},
                    {"kernels", kernels},
                    {"instructions", instructions},
                    {"flops", program.coverage.lowered_flops + program.coverage.estimated_flops}});
  }
  return list;
}

nlohmann::json coverage_json(const StepTiming& step, const std::vector<std::int64_t>& launches) {
  Coverage sum;
  std::vector<std::string> estimated;
  for (std::size_t i = 0; i < step.programs.size(); ++i) {
    const TimedProgram& program = *step.programs[i];
    sum +=
        {program.coverage.lowered_ops * launches[i], program.coverage.estimated_ops * launches[i],
         program.coverage.lowered_flops * launches[i],
         program.coverage.estimated_flops * launches[i]};
    estimated.insert(estimated.end(), program.estimated.begin(), program.estimated.end());
  }
  std::sort(estimated.begin(), estimated.end());
  estimated.erase(std::unique(estimated.begin(), estimated.end()), estimated.end());
  const auto share = [](std::int64_t lowered, std::int64_t rest) {
    return lowered + rest == 0 ? 1.0
                               : static_cast<double>(lowered) / static_cast<double>(lowered + rest);
  };
  return {{"lowered_ops", sum.lowered_ops},
          {"estimated_ops", sum.estimated_ops},
          {"lowered_ops_share", share(sum.lowered_ops, sum.estimated_ops)},
          {"lowered_flops", sum.lowered_flops},
          {"estimated_flops", sum.estimated_flops},
          {"lowered_flops_share", share(sum.lowered_flops, sum.estimated_flops)},
          {"estimated", estimated}};
}

}  // namespace

nlohmann::json step_report(std::int64_t step_number, const StepTiming& step,
                           const std::vector<const StepStream*>& streams,
                           const std::vector<const std::vector<Graph>*>& graphs,
                           const sim::SystemConfig& system) {
  const std::vector<Breakdown> ranks = break_down(step);
  const std::vector<std::int64_t> launches = count_launches(step);
  const std::vector<Attribution> attributions =
      attribute(step, ranks, streams, graphs, kMostAttributed);
  nlohmann::json breakdown = nlohmann::json::array();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    nlohmann::json row = to_json(ranks[rank]);
    row["rank"] = step.world_rank(rank);
    row["represents"] = step.job.fold.represents(static_cast<int>(rank));
    breakdown.push_back(std::move(row));
  }
  nlohmann::json links = nlohmann::json::array();
  for (const sim::LinkUsage& link : step.timing.links) {
    links.push_back({{"name", link.name},
                     {"busy_us", to_microseconds(link.busy)},
                     {"size_bytes", link.bytes.value}});
  }
  return {{"schema", "trellis.step_report/1"},
          {"step", step_number},
          {"instance", system.instance.name},
          {"step_time_ps", step.timing.makespan.value},
          {"step_time_ms", to_milliseconds(step.timing.makespan)},
          {"logical_cores", system.logical_cores()},
          {"peak_flops_per_core", system.peak_per_logical_core().value},
          {"evidence", std::string(name(system.worst_evidence()))},
          {"breakdown", std::move(breakdown)},
          {"attribution", attributions_json(step, attributions)},
          {"coverage", coverage_json(step, launches)},
          {"programs", programs_json(step, launches)},
          {"communication", communication(step)},
          {"links", std::move(links)}};
}

}  // namespace trellis::device
