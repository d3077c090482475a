#include "trainer/report/run_diff.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "trainer/report/step_view.h"

namespace trellis::trainer {

namespace {

using nlohmann::json;

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
    std::stable_sort(table.rows.begin(), table.rows.end(), [](const DiffRow& a, const DiffRow& b) { return std::abs(a.change()) > std::abs(b.change()); });
    return table;
  }

 private:
  std::map<std::string, DiffRow> rows_;
};

DiffTable diff_times(std::string title, const std::vector<NamedTime>& before, const std::vector<NamedTime>& after) {
  Rows rows;
  for (const NamedTime& t : before) rows.before(t.name, t.ps);
  for (const NamedTime& t : after) rows.after(t.name, t.ps);
  return rows.table(std::move(title));
}

template <typename Name>
DiffTable diff_rows(std::string title, const StepView& before, const StepView& after, const Name& name) {
  Rows rows;
  for (const AttributedTime& row : before.rows) rows.before(name(row), row.ps, row.count);
  for (const AttributedTime& row : after.rows) rows.after(name(row), row.ps, row.count);
  return rows.table(std::move(title));
}

std::string or_none(const std::string& text) { return text.empty() ? "(none)" : text; }

void explain_by_rows(const StepView& before, const StepView& after, RunDiff& diff) {
  diff.step.push_back(diff_rows("kind", before, after, [](const AttributedTime& r) { return r.kind; }));
  diff.step.push_back(diff_rows("phase", before, after, [](const AttributedTime& r) { return or_none(r.phase); }));
  diff.step.push_back(diff_rows("component", before, after, [](const AttributedTime& r) { return or_none(r.component); }));
  diff.step.push_back(diff_rows("operator", before, after, [](const AttributedTime& r) { return or_none(r.op); }));
  diff.causes = diff_rows("cause", before, after, [](const AttributedTime& r) { return r.name(); });
  std::int64_t named = 0;
  for (const AttributedTime& row : before.rows) named -= row.names_nothing() ? 0 : row.ps;
  for (const AttributedTime& row : after.rows) named += row.names_nothing() ? 0 : row.ps;
  diff.unexplained_ps = diff.step_change_ps() - named;
}

/// The parts of the breakdown are all that older reports have; `other` (launches, gaps) says nothing.
void explain_by_parts(const ReportFile& before, const ReportFile& after, RunDiff& diff) {
  const auto phases = [](const ReportFile& file) {
    return program_time_by_phase(file.report.at("simulated"), file.report.at("world_size").get<std::int64_t>());
  };
  diff.phases_of_programs = diff_times("phase", phases(before), phases(after));
  diff.causes = diff.step.front();
  diff.causes.title = "cause";
  std::int64_t named = 0;
  for (const DiffRow& row : diff.causes.rows) named += row.name == "other" ? 0 : row.change();
  diff.unexplained_ps = diff.step_change_ps() - named;
  diff.notes.emplace_back("Not both reports have `attribution`: the change is explained by the parts of one rank's breakdown, its part `other` counts as unexplained; "
                          "make both runs again with this version to see components and operators.");
}

const json* fullest(const json& report) {
  if (!report.contains("memory")) return nullptr;
  const json& ranks = report.at("memory").at("ranks");
  return &*std::max_element(ranks.begin(), ranks.end(), [](const json& a, const json& b) { return a.at("peak_bytes") < b.at("peak_bytes"); });
}

std::string place(const json& rank) { return "rank " + rank.at("rank").dump() + ", " + rank.at("peak_phase").get<std::string>(); }

void memory_of(const json& rank, Rows& rows, bool is_before) {
  const auto add = [&](const std::string& name, const json& bytes) {
    is_before ? rows.before(name, bytes.get<std::int64_t>()) : rows.after(name, bytes.get<std::int64_t>());
  };
  for (const auto& [key, bytes] : rank.at("at_peak").items()) add(key.ends_with("_bytes") ? key.substr(0, key.size() - 6) : key, bytes);
  add("peak allocated", rank.at("peak_bytes"));
  if (rank.contains("peak_reserved_bytes")) add("peak reserved", rank.at("peak_reserved_bytes"));
}

void diff_memory(const json& before, const json& after, RunDiff& diff) {
  const json* a = fullest(before);
  const json* b = fullest(after);
  if (a == nullptr || b == nullptr) {
    diff.notes.emplace_back("Memory is not compared: a run kept no account of it.");
    return;
  }
  Rows rows;
  memory_of(*a, rows, true);
  memory_of(*b, rows, false);
  diff.memory = rows.table("memory");
  diff.memory_place_before = place(*a);
  diff.memory_place_after = place(*b);
}

DiffTable diff_links(const json& before, const json& after) {
  Rows rows;
  const auto busy = [](const json& link) { return static_cast<std::int64_t>(std::llround(link.at("busy_us").get<double>() * 1e6)); };
  for (const json& link : before.at("links")) rows.before(link.at("name"), busy(link), link.at("size_bytes"));
  for (const json& link : after.at("links")) rows.after(link.at("name"), busy(link), link.at("size_bytes"));
  return rows.table("link");
}

DiffTable diff_programs(const json& before, const json& after) {
  Rows rows;
  const auto name = [](const json& program) { return program.at("name").get<std::string>() + " " + program.at("hash").get<std::string>(); };
  for (const json& program : before.at("programs")) rows.before(name(program), program.at("launches"));
  for (const json& program : after.at("programs")) rows.after(name(program), program.at("launches"));
  return rows.table("program");
}

/// Where a run wrote is no difference of the run.
bool is_place(const std::string& key) { return key == "exp_manager.explicit_log_dir" || key == "exp_manager.exp_dir" || key == "exp_manager.version"; }

std::vector<SettingChange> diff_settings(const ReportFile& before, const ReportFile& after) {
  std::vector<SettingChange> changes;
  const bool has_settings = !before.settings.empty() && !after.settings.empty();
  constexpr std::array<const char*, 10> kFacts{"instance", "nodes", "device", "world_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
                                               "num_microbatches", "tokens_per_step", "parameters", "precision"};
  // Instance and nodes come from the command line; the others stand in hparams.yaml too, under the names that the user writes.
  for (std::size_t i = 0; i < (has_settings ? 2 : kFacts.size()); ++i) {
    const json a = before.report.value(kFacts[i], json("none")), b = after.report.value(kFacts[i], json("none"));
    if (a != b) changes.push_back({kFacts[i], a.dump(), b.dump()});
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
    if (a != b && !is_place(key)) changes.push_back({key, a.empty() ? "absent" : a, b.empty() ? "absent" : b});
  }
  return changes;
}

std::vector<std::string> estimated(const json& step) {
  std::vector<std::string> names;
  for (const json& name : step.at("coverage").at("estimated")) names.push_back(name);
  return names;
}

}  // namespace

std::int64_t DiffTable::change() const {
  std::int64_t sum = 0;
  for (const DiffRow& row : rows) sum += row.change();
  return sum;
}

bool DiffTable::changed() const {
  return std::any_of(rows.begin(), rows.end(), [](const DiffRow& row) { return row.before != row.after || row.count_before != row.count_after; });
}

double RunDiff::explained() const {
  if (step_change_ps() == 0) return 1;
  return 1 - std::abs(static_cast<double>(unexplained_ps) / static_cast<double>(step_change_ps()));
}

bool RunDiff::equal() const {
  const bool same_step = std::none_of(step.begin(), step.end(), [](const DiffTable& table) { return table.changed(); });
  return same_step && step_change_ps() == 0 && !phases_of_programs.changed() && !memory.changed() && !links.changed() && !programs.changed() &&
         settings.empty() && estimated_before == estimated_after && lowered_before == lowered_after;
}

RunDiff diff_runs(const ReportFile& before, const ReportFile& after) {
  const json& a = simulated_step(before.report, before.path.string());
  const json& b = simulated_step(after.report, after.path.string());
  const StepView view_a = view_step(a), view_b = view_step(b);
  RunDiff diff;
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
  diff_memory(before.report, after.report, diff);
  diff.links = diff_links(a, b);
  diff.programs = diff_programs(a, b);
  diff.estimated_before = estimated(a);
  diff.estimated_after = estimated(b);
  diff.lowered_before = a.at("coverage").at("lowered_flops_share");
  diff.lowered_after = b.at("coverage").at("lowered_flops_share");
  diff.settings = diff_settings(before, after);
  if (before.settings.empty() != after.settings.empty()) diff.notes.emplace_back("Only one run has its hparams.yaml: settings are compared by what the reports say.");
  return diff;
}

}  // namespace trellis::trainer
