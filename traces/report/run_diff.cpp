#include "traces/report/run_diff.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "traces/report/measured_step.h"
#include "traces/report/step_view.h"

namespace trellis::analysis {

namespace {

using nlohmann::json;

/// Which rank of one run is the equal of a rank of the other: the same one, or one of its pipeline
/// stage, whose ranks do the same.
class RankPairs {
 public:
  RankPairs(const json& before, const json& after)
      : world_before_(before.at("world_size")),
        world_after_(after.at("world_size")),
        stages_before_(before.at("pipeline_model_parallel_size")),
        stages_after_(after.at("pipeline_model_parallel_size")) {}
  [[nodiscard]] bool same_stages() const { return stages_before_ == stages_after_; }
  [[nodiscard]] std::int64_t stage_after(std::int64_t rank) const {
    return rank * stages_after_ / world_after_;
  }
  [[nodiscard]] std::int64_t stage_before(std::int64_t rank) const {
    return rank * stages_before_ / world_before_;
  }
  /// The row of `rows`, before, that is of the equal of a rank after: of it, else the one of its
  /// stage that represents most ranks. Null: there is none.
  [[nodiscard]] const json* equal_of(std::int64_t after, const json& rows) const {
    if (!same_stages()) return nullptr;
    const json* best = nullptr;
    for (const json& row : rows) {
      const std::int64_t rank = row.at("rank");
      if (rank == after && world_before_ == world_after_) return &row;
      const auto represents = [](const json& r) { return r.value("represents", std::int64_t{1}); };
      if (stage_before(rank) == stage_after(after) &&
          (best == nullptr || represents(row) > represents(*best)))
        best = &row;
    }
    return best;
  }

 private:
  std::int64_t world_before_, world_after_, stages_before_, stages_after_;
};

const json* row_of(const json& breakdown, std::int64_t rank) {
  const auto row = std::find_if(breakdown.begin(), breakdown.end(),
                                [&](const json& r) { return r.at("rank") == rank; });
  return row == breakdown.end() ? nullptr : &*row;
}

/// A row with the same parts that `attribution` has rows of: ranks of one class are attributed
/// once. Null: the row's class is not attributed.
const json* attributed_equal(const json& step, const json& row) {
  const auto without_rank = [](json r) {
    r.erase("rank");
    r.erase("represents");
    return r;
  };
  for (const std::int64_t rank : attributed_ranks(step)) {
    const json* other = row_of(step.at("breakdown"), rank);
    if (other != nullptr &&
        (rank == row.at("rank").get<std::int64_t>() || without_rank(*other) == without_rank(row)))
      return other;
  }
  return nullptr;
}

/// Equal ranks of both runs, before and after, of which the one after did most additional work (in
/// a faster run: less): the others wait for it. Without stages in common the ranks that the reports
/// explain.
std::pair<std::int64_t, std::int64_t> ranks_to_explain(const json& before, const json& after,
                                                       const RankPairs& pairs) {
  const json& a = before.at("simulated");
  const json& b = after.at("simulated");
  const std::int64_t change =
      b.at("step_time_ps").get<std::int64_t>() - a.at("step_time_ps").get<std::int64_t>();
  std::pair<std::int64_t, std::int64_t> best{view_step(a).rank, view_step(b).rank};
  const bool attributed = a.contains("attribution") && b.contains("attribution");
  std::vector<std::int64_t> candidates =
      attributed ? attributed_ranks(b) : std::vector<std::int64_t>{best.second};
  std::optional<std::int64_t> most;
  for (const std::int64_t rank : candidates) {
    const json* later = row_of(b.at("breakdown"), rank);
    const json* earlier = pairs.equal_of(rank, a.at("breakdown"));
    if (attributed && earlier != nullptr) earlier = attributed_equal(a, *earlier);
    if (later == nullptr || earlier == nullptr) continue;
    const std::int64_t own = change - (waits_of(*later) - waits_of(*earlier)),
                       more = change < 0 ? -own : own;
    if (most && more <= *most) continue;
    most = more;
    best = {earlier->at("rank"), rank};
  }
  return best;
}

/// Collects both runs' numbers under their names.
class Rows {
 public:
  void before(const std::string& name, std::int64_t value, std::int64_t count = 0) {
    DiffRow& row = rows_[name];
    row.before += value;
    row.count_before += count;
  }
  void after(const std::string& name, std::int64_t value, std::int64_t count = 0) {
    DiffRow& row = rows_[name];
    row.after += value;
    row.count_after += count;
  }
  [[nodiscard]] DiffTable table(std::string title) const {
    DiffTable table{std::move(title), {}};
    for (const auto& [name, row] : rows_) {
      table.rows.push_back(row);
      table.rows.back().name = name;
    }
    std::stable_sort(table.rows.begin(), table.rows.end(), [](const DiffRow& a, const DiffRow& b) {
      return std::abs(a.change()) > std::abs(b.change());
    });
    return table;
  }

 private:
  std::map<std::string, DiffRow> rows_;
};

DiffTable diff_times(std::string title, const std::vector<NamedTime>& before,
                     const std::vector<NamedTime>& after) {
  Rows rows;
  for (const NamedTime& t : before) rows.before(t.name, t.ps);
  for (const NamedTime& t : after) rows.after(t.name, t.ps);
  return rows.table(std::move(title));
}

template <typename Name>
DiffTable diff_rows(std::string title, const StepView& before, const StepView& after,
                    const Name& name) {
  Rows rows;
  for (const AttributedTime& row : before.rows) rows.before(name(row), row.ps, row.count);
  for (const AttributedTime& row : after.rows) rows.after(name(row), row.ps, row.count);
  return rows.table(std::move(title));
}

std::string or_none(const std::string& text) { return text.empty() ? "(none)" : text; }

void explain_by_rows(const StepView& before, const StepView& after, RunDiff& diff) {
  diff.step.push_back(
      diff_rows("kind", before, after, [](const AttributedTime& r) { return r.kind; }));
  diff.step.push_back(
      diff_rows("phase", before, after, [](const AttributedTime& r) { return or_none(r.phase); }));
  diff.step.push_back(diff_rows("component", before, after,
                                [](const AttributedTime& r) { return or_none(r.component); }));
  diff.step.push_back(
      diff_rows("operator", before, after, [](const AttributedTime& r) { return or_none(r.op); }));
  diff.causes = diff_rows("cause", before, after, [](const AttributedTime& r) { return r.name(); });
  std::int64_t named = 0;
  for (const AttributedTime& row : before.rows) named -= row.names_nothing() ? 0 : row.ps;
  for (const AttributedTime& row : after.rows) named += row.names_nothing() ? 0 : row.ps;
  diff.unexplained_ps = diff.step_change_ps() - named;
}

/// The parts of the breakdown are all that older reports have; `other` (launches, gaps) says
/// nothing.
void explain_by_parts(const ReportFile& before, const ReportFile& after, RunDiff& diff) {
  const auto phases = [](const ReportFile& file) {
    return program_time_by_phase(file.report.at("simulated"),
                                 file.report.at("world_size").get<std::int64_t>());
  };
  diff.phases_of_programs = diff_times("phase", phases(before), phases(after));
  diff.causes = diff.step.front();
  diff.causes.title = "cause";
  std::int64_t named = 0;
  for (const DiffRow& row : diff.causes.rows) named += row.name == "other" ? 0 : row.change();
  diff.unexplained_ps = diff.step_change_ps() - named;
  diff.notes.emplace_back(
      "Not both reports have `attribution`: the change is explained by the parts of one rank's "
      "breakdown, its part `other` counts as unexplained; "
      "make both runs again with this version to see components and operators.");
}

std::string place(const json& rank) {
  return "rank " + rank.at("rank").dump() + ", " + rank.at("peak_phase").get<std::string>();
}

void memory_of(const json& rank, Rows& rows, bool is_before) {
  const auto add = [&](const std::string& name, const json& bytes) {
    is_before ? rows.before(name, bytes.get<std::int64_t>())
              : rows.after(name, bytes.get<std::int64_t>());
  };
  for (const auto& [key, bytes] : rank.at("at_peak").items())
    add(key.ends_with("_bytes") ? key.substr(0, key.size() - 6) : key, bytes);
  add("peak allocated", rank.at("peak_bytes"));
  if (rank.contains("peak_reserved_bytes")) add("peak reserved", rank.at("peak_reserved_bytes"));
}

const json& fullest_of(const json& ranks) {
  return *std::max_element(ranks.begin(), ranks.end(), [](const json& a, const json& b) {
    return a.at("peak_bytes") < b.at("peak_bytes");
  });
}

void diff_memory(const json& before, const json& after, const RankPairs& pairs, RunDiff& diff) {
  if (!before.contains("memory") || !after.contains("memory")) {
    diff.notes.emplace_back("Memory is not compared: a run kept no account of it.");
    return;
  }
  const json& b = fullest_of(after.at("memory").at("ranks"));
  const json& fullest_before = fullest_of(before.at("memory").at("ranks"));
  const json* equal =
      pairs.equal_of(b.at("rank").get<std::int64_t>(), before.at("memory").at("ranks"));
  const json& a = equal == nullptr ? fullest_before : *equal;
  Rows rows;
  memory_of(a, rows, true);
  memory_of(b, rows, false);
  diff.memory = rows.table("memory");
  diff.memory_place_before = place(a);
  diff.memory_place_after = place(b);
  if (a.at("peak_bytes") < fullest_before.at("peak_bytes"))
    diff.notes.emplace_back("Before, another rank was the fullest: " + place(fullest_before) + ".");
}

DiffTable diff_links(const json& before, const json& after) {
  Rows rows;
  const auto busy = [](const json& link) {
    return picoseconds_of(link.at("busy_us").get<double>());
  };
  for (const json& link : before.at("links"))
    rows.before(link.at("name"), busy(link), link.at("size_bytes"));
  for (const json& link : after.at("links"))
    rows.after(link.at("name"), busy(link), link.at("size_bytes"));
  return rows.table("link");
}

DiffTable diff_programs(const json& before, const json& after) {
  Rows rows;
  const auto name = [](const json& program) {
    return program.at("name").get<std::string>() + " " + program.at("hash").get<std::string>();
  };
  for (const json& program : before.at("programs"))
    rows.before(name(program), program.at("launches"));
  for (const json& program : after.at("programs"))
    rows.after(name(program), program.at("launches"));
  return rows.table("program");
}

/// Where a run wrote is no difference of the run.
bool is_place(const std::string& key) {
  return key == "exp_manager.explicit_log_dir" || key == "exp_manager.exp_dir" ||
         key == "exp_manager.version";
}

std::vector<SettingChange> diff_settings(const ReportFile& before, const ReportFile& after) {
  std::vector<SettingChange> changes;
  const bool has_settings = !before.settings.empty() && !after.settings.empty();
  constexpr std::array<const char*, 10> kComparedFacts{"instance",
                                                       "nodes",
                                                       "device",
                                                       "world_size",
                                                       "tensor_model_parallel_size",
                                                       "pipeline_model_parallel_size",
                                                       "num_microbatches",
                                                       "tokens_per_step",
                                                       "parameters",
                                                       "precision"};
  // Instance and nodes come from the command line; the others are in hparams.yaml too, under the
  // names that the user writes.
  for (std::size_t i = 0; i < (has_settings ? 2 : kComparedFacts.size()); ++i) {
    const json a = before.report.value(kComparedFacts[i], json("none")),
               b = after.report.value(kComparedFacts[i], json("none"));
    if (a != b) changes.push_back({kComparedFacts[i], a.dump(), b.dump()});
  }
  if (!has_settings) return changes;
  std::vector<std::string> keys;
  std::map<std::string, std::pair<std::string, std::string>> values;
  const auto add = [&](const Settings& settings, auto member) {
    for (const auto& [key, value] : settings) {
      if (!values.contains(key)) keys.push_back(key);
      values[key].*member = value;
    }
  };
  add(before.settings, &std::pair<std::string, std::string>::first);
  add(after.settings, &std::pair<std::string, std::string>::second);
  for (const std::string& key : keys) {
    const auto& [a, b] = values.at(key);
    if (a != b && !is_place(key))
      changes.push_back({key, a.empty() ? "absent" : a, b.empty() ? "absent" : b});
  }
  return changes;
}

/// Pairs of texts by key, as changes; `none`: what a key means that is absent.
std::vector<SettingChange> changes_of(const std::map<std::string, std::string>& before,
                                      const std::map<std::string, std::string>& after,
                                      const std::string& none) {
  std::map<std::string, SettingChange> changes;
  for (const auto& [key, value] : before) changes[key] = {key, value, none};
  for (const auto& [key, value] : after)
    changes.try_emplace(key, SettingChange{key, none, none}).first->second.after = value;
  std::vector<SettingChange> list;
  for (auto& [key, change] : changes) {
    if (change.before != change.after) list.push_back(std::move(change));
  }
  return list;
}

std::map<std::string, std::string> slow_parts(const json& machine) {
  std::map<std::string, std::string> parts;
  for (const json& part : machine.at("slow")) {
    const std::string text = part;
    parts[text.substr(0, text.rfind('='))] = text.substr(text.rfind('=') + 1);
  }
  return parts;
}

void diff_machines(const json& before, const json& after, RunDiff& diff) {
  if (!before.contains("machine") || !after.contains("machine")) {
    diff.notes.emplace_back(
        "The machines are compared by name only: a report of an older version does not hold their "
        "numbers and slowed parts.");
    return;
  }
  const json& a = before.at("machine");
  const json& b = after.at("machine");
  diff.slow = changes_of(slow_parts(a), slow_parts(b), "1");
  // Reports of version 1 do not name it.
  const auto model = [](const json& machine) { return machine.value("model", std::string("1")); };
  if (model(a) != model(b)) diff.model = {"version of the model", model(a), model(b)};
  if (before.at("instance") != after.at("instance")) return;
  diff.hardware = changes_of(a.at("hardware"), b.at("hardware"), "absent");
}

std::vector<std::string> estimated(const json& step) {
  std::vector<std::string> names;
  for (const json& name : step.at("coverage").at("estimated")) names.push_back(name);
  return names;
}

}  // namespace

bool decides_the_step(const std::string& key) {
  if (key.starts_with("model.optim.sched.")) return false;  // learning rates are values
  for (const char* section : {"model.", "distributed_strategy.", "precision."}) {
    if (key.starts_with(section)) return true;
  }
  constexpr std::array<const char*, 6> kKeys{"data.micro_batch_size", "data.global_batch_size",
                                             "trainer.devices",       "trainer.num_nodes",
                                             "trainer.lnc",           "software"};
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

std::int64_t DiffTable::change() const {
  std::int64_t sum = 0;
  for (const DiffRow& row : rows) sum += row.change();
  return sum;
}

bool DiffTable::changed() const {
  return std::any_of(rows.begin(), rows.end(), [](const DiffRow& row) {
    return row.before != row.after || row.count_before != row.count_after;
  });
}

double RunDiff::explained() const {
  if (step_change_ps() == 0) return 1;
  return 1 - std::abs(static_cast<double>(unexplained_ps) / static_cast<double>(step_change_ps()));
}

bool RunDiff::equal() const {
  const bool same_step = std::none_of(step.begin(), step.end(),
                                      [](const DiffTable& table) { return table.changed(); });
  return same_step && step_change_ps() == 0 && !phases_of_programs.changed() && !memory.changed() &&
         !links.changed() && !programs.changed() && slow.empty() && hardware.empty() &&
         settings.empty() && estimated_before == estimated_after && lowered_before == lowered_after;
}

std::vector<SettingChange> settings_changes(const ReportFile& before, const ReportFile& after) {
  return diff_settings(before, after);
}

namespace {

/// Compares what steps of both kinds have: time, phases, peaks of memory.
RunDiff diff_timed(const ReportFile& before, const ReportFile& after) {
  const TimedStep a = timed_step(before.report, before.path.string());
  RunDiff diff;
  diff.stage = common_stage(a, before.report, after.report);
  const TimedStep b = timed_step(after.report, after.path.string(), diff.stage);
  diff.before = before.path.string();
  diff.after = after.path.string();
  diff.simulated_before = a.simulated;
  diff.simulated_after = b.simulated;
  diff.step_before_ps = a.ps;
  diff.step_after_ps = b.ps;
  diff.rank_before = a.rank;
  diff.rank_after = b.rank;
  diff.causes = diff_times("phase", a.phases, b.phases);
  diff.step.push_back(diff.causes);
  diff.unexplained_ps = diff.step_change_ps() - diff.causes.change();
  if (a.peak_bytes && b.peak_bytes) {
    Rows rows;
    rows.before("peak allocated", *a.peak_bytes);
    rows.after("peak allocated", *b.peak_bytes);
    diff.memory = rows.table("memory");
    diff.memory_place_before = diff.memory_place_after = "the fullest rank";
  }
  diff.settings = diff_settings(before, after);
  diff.notes.emplace_back(
      "A measured step has the noise of the clock: compare medians of many steps.");
  return diff;
}

}  // namespace

RunDiff diff_runs(const ReportFile& before, const ReportFile& after) {
  if (before.report.contains("measured") || after.report.contains("measured"))
    return diff_timed(before, after);
  const json& a = simulated_step(before.report, before.path.string());
  const json& b = simulated_step(after.report, after.path.string());
  const RankPairs pairs(before.report, after.report);
  const auto [rank_a, rank_b] = ranks_to_explain(before.report, after.report, pairs);
  const StepView view_a = view_rank(a, rank_a), view_b = view_rank(b, rank_b);
  RunDiff diff;
  if (pairs.same_stages() && pairs.stage_before(rank_a) == pairs.stage_after(rank_b))
    diff.stage = pairs.stage_after(rank_b);
  diff.before = before.path.string();
  diff.after = after.path.string();
  diff.step_before_ps = view_a.step_time_ps;
  diff.step_after_ps = view_b.step_time_ps;
  diff.rank_before = view_a.rank;
  diff.rank_after = view_b.rank;
  diff.attributed = !view_a.rows.empty() && !view_b.rows.empty();
  diff.step.push_back(diff_times("part", view_a.parts, view_b.parts));
  if (diff.attributed) {
    explain_by_rows(view_a, view_b, diff);
  } else {
    explain_by_parts(before, after, diff);
  }
  diff_memory(before.report, after.report, pairs, diff);
  diff_machines(before.report, after.report, diff);
  diff.links = diff_links(a, b);
  diff.programs = diff_programs(a, b);
  diff.estimated_before = estimated(a);
  diff.estimated_after = estimated(b);
  diff.lowered_before = a.at("coverage").at("lowered_flops_share");
  diff.lowered_after = b.at("coverage").at("lowered_flops_share");
  diff.settings = diff_settings(before, after);
  if (before.settings.empty() != after.settings.empty())
    diff.notes.emplace_back(
        "Only one run has its hparams.yaml: settings are compared by what the reports say.");
  return diff;
}

}  // namespace trellis::analysis
