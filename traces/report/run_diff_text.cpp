#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "base/escape.h"
#include "base/number_text.h"
#include "traces/report/run_diff.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {

namespace {

using nlohmann::json;
using Align = TextTable::Align;

enum class Unit { kTime, kBytes };

constexpr std::size_t kMostRootCauses = 5;

/// The texts of a diff for one kind of reader.
struct Style {
  bool markdown = false;
  int top = 10;
  bool root_causes = true;
  [[nodiscard]] std::string title(const std::string& text) const {
    return markdown ? "\n**" + markdown_text(text) + "**\n\n" : "\n" + terminal_line(text) + "\n";
  }
  [[nodiscard]] std::string table(const TextTable& table) const {
    return markdown ? table.markdown() : table.text();
  }
  [[nodiscard]] std::string line(const std::string& text) const {
    return markdown ? "\n" + markdown_text(text) + "\n" : terminal_line(text) + "\n";
  }
};

std::string value_text(std::int64_t value, Unit unit) {
  return unit == Unit::kTime ? milliseconds_text(value) : human_bytes(value);
}
std::string change_text(std::int64_t value, Unit unit) {
  return unit == Unit::kTime ? change_in_ms(value) : change_in_bytes(value);
}

/// Changed rows, the largest change first; "" when there are none.
std::string table_text(const DiffTable& table, Unit unit, const std::string& title,
                       const Style& style) {
  if (!table.changed()) return "";
  const bool counted = std::any_of(table.rows.begin(), table.rows.end(), [](const DiffRow& r) {
    return r.count_before + r.count_after > 0;
  });
  std::vector<TextTable::Column> columns{
      {table.title, Align::kLeft}, {"before"}, {"after"}, {"change"}, {"change"}};
  if (counted)
    columns.push_back({unit == Unit::kTime && table.title == "link" ? "bytes" : "count"});
  TextTable text(columns);
  int shown = 0;
  std::int64_t hidden = 0, hidden_change = 0;
  for (const DiffRow& row : table.rows) {
    if (row.before == row.after && row.count_before == row.count_after) continue;
    if (shown++ >= style.top) {
      ++hidden;
      hidden_change += row.change();
      continue;
    }
    std::vector<std::string> cells{row.name, value_text(row.before, unit),
                                   value_text(row.after, unit), change_text(row.change(), unit),
                                   change_in_percent(row.before, row.after)};
    if (counted)
      cells.push_back(row.count_before == row.count_after
                          ? thousands(row.count_before)
                          : thousands(row.count_before) + " → " + thousands(row.count_after));
    text.add(std::move(cells));
  }
  std::string out = style.title(title) + style.table(text);
  if (hidden > 0)
    out += style.line(fmt::format("  and {} smaller ones, {} together (--top N shows more)", hidden,
                                  change_text(hidden_change, unit)));
  return out;
}

std::string programs_text(const DiffTable& programs, const Style& style) {
  std::int64_t both = 0, only_before = 0, only_after = 0;
  for (const DiffRow& row : programs.rows) {
    both += row.before > 0 && row.after > 0 ? 1 : 0;
    only_before += row.after == 0 ? 1 : 0;
    only_after += row.before == 0 ? 1 : 0;
  }
  return style.line(fmt::format(
      "Programs: {} in both, {} only before, {} only after: {}", both, only_before, only_after,
      only_after == 0
          ? "a cache of compiled graphs of the first run serves the second"
          : fmt::format("{} to compile that a cache of the first run does not have", only_after)));
}

std::string coverage_text(const RunDiff& diff, const Style& style) {
  if (diff.lowered_before == diff.lowered_after && diff.estimated_before == diff.estimated_after)
    return "";
  std::string text = fmt::format("Lowered share of the FLOPs: {:.2f} % → {:.2f} %",
                                 100 * diff.lowered_before, 100 * diff.lowered_after);
  const auto only = [](const std::vector<std::string>& in, const std::vector<std::string>& not_in) {
    std::vector<std::string> names;
    std::set_difference(in.begin(), in.end(), not_in.begin(), not_in.end(),
                        std::back_inserter(names));
    return names;
  };
  const auto gone = only(diff.estimated_before, diff.estimated_after),
             fresh = only(diff.estimated_after, diff.estimated_before);
  if (!fresh.empty()) text += fmt::format("; newly estimated: {}", fmt::join(fresh, ", "));
  if (!gone.empty()) text += fmt::format("; no longer estimated: {}", fmt::join(gone, ", "));
  return style.line(text);
}

std::string changes_text(const std::string& title, const char* column,
                         const std::vector<SettingChange>& changes, const Style& style) {
  if (changes.empty()) return "";
  TextTable table({{column, Align::kLeft}, {"before", Align::kLeft}, {"after", Align::kLeft}});
  for (const SettingChange& change : changes) table.add({change.key, change.before, change.after});
  return style.title(title) + style.table(table);
}

/// The inputs of the runs: machine and configuration.
std::string inputs_text(const RunDiff& diff, const Style& style) {
  if (diff.slow.empty() && diff.hardware.empty() && diff.settings.empty())
    return style.line("Machine and configuration: the same");
  std::string text = changes_text("Slowed parts, times as long", "part", diff.slow, style) +
                     changes_text("Numbers of the machine", "number", diff.hardware, style);
  return text + (diff.settings.empty()
                     ? style.line("Configuration: the same")
                     : changes_text("Configuration", "setting", diff.settings, style));
}

std::string explained_text(const RunDiff& diff) {
  const std::string ranks =
      diff.rank_before == diff.rank_after
          ? fmt::format("rank {}", diff.rank_before)
          : fmt::format("rank {} → rank {}", diff.rank_before, diff.rank_after);
  return ", explained by " + ranks +
         (diff.stage ? fmt::format(" (stage {})", *diff.stage) : " (of other stages)");
}

std::string kind_text(const RunDiff& diff) {
  if (diff.simulated_before == diff.simulated_after)
    return diff.simulated_after ? "Simulated step" : "Measured step";
  return diff.simulated_after ? "Step, measured → simulated," : "Step, simulated → measured,";
}

bool both_simulated(const RunDiff& diff) { return diff.simulated_before && diff.simulated_after; }

std::string step_text(const RunDiff& diff, const Style& style) {
  std::string text = style.line(fmt::format(
      "{} {} → {}: {} ({}){}", kind_text(diff), milliseconds_text(diff.step_before_ps),
      milliseconds_text(diff.step_after_ps), change_in_ms(diff.step_change_ps()),
      change_in_percent(diff.step_before_ps, diff.step_after_ps), explained_text(diff)));
  if (diff.step_change_ps() != 0) {
    text +=
        style.line(fmt::format("Explained {} of the change; unexplained {}",
                               share_text(diff.explained(), 1), change_in_ms(diff.unexplained_ps)));
    text += style.line(first_cause(diff));
  }
  if (diff.attributed)
    text += table_text(diff.causes, Unit::kTime, "By phase, component and operator", style);
  for (const DiffTable& table : diff.step)
    text += table_text(table, Unit::kTime, "By " + table.title, style);
  return text +
         table_text(
             diff.phases_of_programs, Unit::kTime,
             "By phase: time of the programs, mean over the ranks, without waits and launches",
             style);
}

std::string render(const RunDiff& diff, const Style& style) {
  if (diff.equal())
    return style.line("Equal: the step, its parts, memory, links, programs and configuration of " +
                      diff.before + " and " + diff.after + " are the same");
  std::string text;
  for (const std::string& cause :
       style.root_causes ? root_causes(diff) : std::vector<std::string>{})
    text += style.line(cause);
  text += inputs_text(diff, style) + step_text(diff, style);
  const std::string place = diff.memory_place_before == diff.memory_place_after
                                ? diff.memory_place_before
                                : diff.memory_place_before + " → " + diff.memory_place_after;
  text += diff.memory.changed()
              ? table_text(
                    diff.memory, Unit::kBytes,
                    "Device memory at its peak of the rank that is fullest after (" + place + ")",
                    style)
          : diff.memory.rows.empty() ? ""
                                     : style.line("Device memory: the same");
  text += table_text(diff.links, Unit::kTime, "Links, time busy", style);
  if (both_simulated(diff))
    text += programs_text(diff.programs, style) + coverage_text(diff, style);
  for (const std::string& note : diff.notes) text += style.line("note: " + note);
  return text;
}

json table_json(const DiffTable& table, const std::string& unit) {
  json rows = json::array();
  for (const DiffRow& row : table.rows) {
    json line = {{"name", row.name},
                 {"before_" + unit, row.before},
                 {"after_" + unit, row.after},
                 {"change_" + unit, row.change()}};
    if (row.count_before + row.count_after > 0) {
      line["count_before"] = row.count_before;
      line["count_after"] = row.count_after;
    }
    rows.push_back(std::move(line));
  }
  return rows;
}

}  // namespace

std::vector<std::string> root_causes(const RunDiff& diff) {
  std::vector<std::string> causes;
  if (diff.equal()) return causes;
  const auto add = [&](const std::string& what, const SettingChange& change) {
    causes.push_back(
        fmt::format("Root cause: {} {}: {} → {}", what, change.key, change.before, change.after));
  };
  if (diff.model)
    causes.push_back(fmt::format(
        "Root cause: {}: {} → {}: its mechanisms and numbers moved (docs/model-versions.md)",
        diff.model->key, diff.model->before, diff.model->after));
  for (const SettingChange& change : diff.slow)
    causes.push_back(fmt::format("Root cause: slowed part {}: {} → {} times as long", change.key,
                                 change.before, change.after));
  for (const SettingChange& change : diff.hardware) add("number of the machine", change);
  for (const SettingChange& change : diff.settings) {
    if (change.key == "instance" || change.key == "nodes" || change.key == "device")
      add("machine,", change);
  }
  for (const SettingChange& change : diff.settings) {
    if (decides_the_step(change.key)) add("setting", change);
  }
  if (causes.size() > kMostRootCauses) {
    const std::size_t more = causes.size() - kMostRootCauses;
    causes.resize(kMostRootCauses);
    causes.push_back(fmt::format("  and {} more, listed below", more));
  }
  if (!causes.empty() || diff.step_change_ps() == 0) return causes;
  if (!diff.simulated_after) {
    causes.emplace_back(
        "Root cause: machine and configuration are the same: the clock's noise, or the software of "
        "the device changed");
    return causes;
  }
  const std::int64_t fresh =
      std::ranges::count_if(diff.programs.rows, [](const DiffRow& row) { return row.before == 0; });
  causes.push_back(
      fresh > 0 ? fmt::format("Root cause: machine and configuration are the same, but {} programs "
                              "are others: the model's code or the compiler changed",
                              fresh)
                : std::string("Root cause: machine, configuration and programs are the same: the "
                              "simulator itself changed"));
  return causes;
}

std::string first_cause(const RunDiff& diff) {
  const bool slower = diff.step_change_ps() > 0;
  const auto cause = std::find_if(
      diff.causes.rows.begin(), diff.causes.rows.end(),
      [&](const DiffRow& row) { return slower ? row.change() > 0 : row.change() < 0; });
  if (diff.step_change_ps() == 0) return "The step did not change";
  if (cause == diff.causes.rows.end()) return "No row of the step changed in its direction";
  std::string text = fmt::format("Largest part of the change: {} {} ({} → {})", cause->name,
                                 change_in_ms(cause->change()), milliseconds_text(cause->before),
                                 milliseconds_text(cause->after));
  if (cause->count_before != cause->count_after)
    text += fmt::format(", {} → {} times", thousands(cause->count_before),
                        thousands(cause->count_after));
  return text;
}

json to_json(const RunDiff& diff) {
  json step = json::object();
  for (const DiffTable& table : diff.step) step[table.title] = table_json(table, "ps");
  if (diff.attributed) step["cause"] = table_json(diff.causes, "ps");
  if (!diff.phases_of_programs.rows.empty())
    step["phase_of_programs"] = table_json(diff.phases_of_programs, "ps");
  const auto changes = [](const std::vector<SettingChange>& list) {
    json rows = json::array();
    for (const SettingChange& change : list)
      rows.push_back({{"key", change.key}, {"before", change.before}, {"after", change.after}});
    return rows;
  };
  return {{"schema", "trellis.diff/1"},
          {"before", diff.before},
          {"after", diff.after},
          {"simulated_before", diff.simulated_before},
          {"simulated_after", diff.simulated_after},
          {"equal", diff.equal()},
          {"step_before_ps", diff.step_before_ps},
          {"step_after_ps", diff.step_after_ps},
          {"step_change_ps", diff.step_change_ps()},
          {"rank_before", diff.rank_before},
          {"rank_after", diff.rank_after},
          {"stage", diff.stage ? json(*diff.stage) : json(nullptr)},
          {"attributed", diff.attributed},
          {"explained_share", diff.explained()},
          {"unexplained_ps", diff.unexplained_ps},
          {"root_causes", root_causes(diff)},
          {"first_cause", first_cause(diff)},
          {"step", std::move(step)},
          {"memory",
           {{"place_before", diff.memory_place_before},
            {"place_after", diff.memory_place_after},
            {"rows", table_json(diff.memory, "bytes")}}},
          {"links", table_json(diff.links, "ps")},
          {"programs", table_json(diff.programs, "launches")},
          {"coverage",
           {{"lowered_flops_share_before", diff.lowered_before},
            {"lowered_flops_share_after", diff.lowered_after},
            {"estimated_before", diff.estimated_before},
            {"estimated_after", diff.estimated_after}}},
          {"slow", changes(diff.slow)},
          {"model", changes(diff.model ? std::vector{*diff.model} : std::vector<SettingChange>{})},
          {"hardware", changes(diff.hardware)},
          {"settings", changes(diff.settings)},
          {"notes", diff.notes}};
}

std::string diff_text(const RunDiff& diff, int top) { return render(diff, {false, top}); }
std::string diff_markdown(const RunDiff& diff, int top) { return render(diff, {true, top}); }
std::string diff_tables_text(const RunDiff& diff, int top) {
  return render(diff, {false, top, false});
}
std::string diff_tables_markdown(const RunDiff& diff, int top) {
  return render(diff, {true, top, false});
}

}  // namespace trellis::analysis
