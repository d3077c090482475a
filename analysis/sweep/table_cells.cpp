#include "analysis/sweep/table_cells.h"

#include <cmath>

#include "analysis/sweep/reproduce.h"
#include "trainer/config/names.h"

namespace trellis::analysis {

const std::vector<SweepColumn>& sweep_columns() {
  using enum trainer::TableRequest::Type;
  static const std::vector<SweepColumn> columns = {{"index", kInteger},
                                                   {"nodes", kInteger},
                                                   {"tp", kInteger},
                                                   {"pp", kInteger},
                                                   {"vpp", kInteger},
                                                   {"dp", kInteger},
                                                   {"cp", kInteger},
                                                   {"ep", kInteger},
                                                   {"micro_batch_size", kInteger},
                                                   {"sequence_parallel", kFlag},
                                                   {"zero1", kFlag},
                                                   {"fsdp", kFlag},
                                                   {"kv_replicator", kInteger},
                                                   {"recompute", kText},
                                                   {"status", kText},
                                                   {"reason", kText},
                                                   {"bound_ps", kInteger},
                                                   {"bound_bytes", kInteger},
                                                   {"bound_by", kText},
                                                   {"step_time_ps", kInteger},
                                                   {"tokens_per_s", kReal},
                                                   {"mfu", kReal},
                                                   {"peak_bytes", kInteger},
                                                   {"bottleneck", kText},
                                                   {"bottleneck_ps", kInteger},
                                                   {"pareto", kFlag},
                                                   {"evidence", kText},
                                                   {"step_time_least_ps", kInteger},
                                                   {"step_time_most_ps", kInteger},
                                                   {"validity", kText},
                                                   {"estimate_ps", kInteger},
                                                   {"unused_core_share", kReal},
                                                   {"cost_per_million_tokens", kReal},
                                                   {"run_s", kReal},
                                                   {"cost", kReal},
                                                   {"command", kText}};
  return columns;
}

std::vector<SweepCell> sweep_cells(const SweepResult& result, const SweepRow& row) {
  const Candidate& c = row.candidate;
  const auto whole = [](std::int64_t value) { return SweepCell(value); };
  const auto known = [](std::int64_t value) { return value > 0 ? SweepCell(value) : SweepCell(); };
  std::vector<SweepCell> cells = {whole(static_cast<std::int64_t>(row.index)),
                                  whole(c.nodes),
                                  whole(c.tp),
                                  whole(c.pp),
                                  whole(c.vpp),
                                  whole(c.dp),
                                  whole(c.cp),
                                  whole(c.ep),
                                  whole(c.micro_batch_size),
                                  c.sequence_parallel,
                                  c.zero1,
                                  c.fsdp,
                                  whole(c.kv_replicator),
                                  trainer::name_of(c.recompute),
                                  name(row.status),
                                  row.reason,
                                  known(row.bound_ps),
                                  known(row.bound_bytes),
                                  row.bound_by};
  if (row.step) {
    const SimulatedStep& s = *row.step;
    cells.insert(cells.end(), {whole(s.step_time_ps), s.tokens_per_s, s.mfu, whole(s.peak_bytes),
                               s.bottleneck, whole(s.bottleneck_ps), row.pareto, s.evidence});
    const bool ranged = s.range_factor > 0;
    cells.insert(cells.end(),
                 {ranged ? whole(std::llround(static_cast<double>(s.step_time_ps) / s.range_factor))
                         : SweepCell(),
                  ranged ? whole(std::llround(static_cast<double>(s.step_time_ps) * s.range_factor))
                         : SweepCell(),
                  std::string(s.exploratory ? "exploratory" : "validated")});
  } else {
    cells.insert(cells.end(), {{}, {}, {}, {}, {}, {}, row.pareto, {}, {}, {}, {}});
  }
  cells.push_back(known(row.estimate_ps));
  cells.emplace_back(result.cores(c.nodes).unused_share());
  const std::optional<RankedRow> ranked =
      result.ranking && row.step ? std::optional(rank_row(*result.ranking, row)) : std::nullopt;
  const auto real = [](const std::optional<double>& value) {
    return value ? SweepCell(*value) : SweepCell();
  };
  cells.push_back(ranked ? SweepCell(ranked->cost_per_million_tokens) : SweepCell());
  cells.push_back(ranked ? real(ranked->run_s) : SweepCell());
  cells.push_back(ranked ? real(ranked->cost) : SweepCell());
  cells.emplace_back(row.status == SweepStatus::kIllegal && !row.simulated
                         ? SweepCell()
                         : SweepCell(reproduce(result, row)));
  return cells;
}

}  // namespace trellis::analysis
