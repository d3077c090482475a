#include "analysis/calibrate/measurements.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files/input_file.h"
#include "base/nearest.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "traces/report/measured_step.h"
#include "traces/report/report_file.h"
#include "trainer/config/check_fits_machine.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"

namespace trellis::analysis {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kRequired = {"instance", "use"};
const std::vector<std::string> kOptional = {"config", "step_s", "run",  "nodes",   "overrides",
                                            "id",     "kind",   "what", "time_us", "profile"};

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  return first == std::string::npos
             ? ""
             : text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// The median step of a run on a device of LibTorch.
double time_of_run(const MeasurementRow& row, const fs::path& folder) {
  const std::string run = row.text("run");
  const fs::path place = fs::path(run).is_absolute() ? fs::path(run) : folder / run;
  try {
    const ReportFile file = read_report_file(place);
    const TimedStep step = timed_step(file.report, place.string());
    if (!step.simulated) return static_cast<double>(step.ps) * 1e-12;
    row.problem("run", place.string() +
                           ": a simulated step is no measurement: expected a run of "
                           "`trellis train --device` with a device of LibTorch");
  } catch (const ConfigError& error) {
    row.problem("run", error.what());
  }
  return 1;
}

double read_time(const MeasurementRow& row, const fs::path& folder) {
  if (row.text("run").empty()) return row.time("step_s", "the seconds of one step");
  if (row.text("step_s").empty()) return time_of_run(row, folder);
  row.problem("run", "expected step_s or run, got both");
  return 1;
}

/// The configuration as the run will read it; a step in which its FLOPs cannot be done on the
/// machine is no measurement.
void check_run(const MeasurementRow& row, const TrainingRun& run) {
  if (!fs::is_regular_file(run.config))
    return row.problem("config", fmt::format("no such configuration: {}", run.config.string()));
  try {
    const trainer::RunConfig config = trainer::load_run_config(run.config.string(), run.overrides);
    sim::LoadOptions load;
    load.nodes = run.nodes;
    load.logical_core_size = config.trainer.lnc;
    if (run.row.instance.empty()) return;
    const sim::SystemConfig system = sim::load_system(run.row.instance, load);
    trainer::check_fits_machine(config, system);
    const double shortest = config.model_flops_per_step() /
                            (system.peak_per_logical_core().value * config.world_size());
    if (run.row.time_us * 1e-6 < shortest) {
      row.problem("step_s",
                  fmt::format("{:.6g} s is impossible: the model's FLOPs alone take {:.6g} s at "
                              "the bf16 peak of {} cores (wrong unit, nodes or overrides?)",
                              run.row.time_us * 1e-6, shortest, config.world_size()));
    }
  } catch (const ConfigError& error) {
    row.problem(run.overrides.empty() ? "config" : "overrides", error.what());
  }
}

TrainingRun read_run(const MeasurementRow& row, const fs::path& folder, std::size_t line) {
  TrainingRun run;
  run.row.id = row.id(line);
  run.row.instance = row.instance();
  run.row.group = "instance " + run.row.instance;
  run.row.source = "own measurement";
  run.row.size = "measured";
  run.row.use = row.use();
  run.row.time_us = read_time(row, folder) * 1e6;
  run.nodes = row.nodes();
  std::istringstream words(row.text("overrides"));
  for (std::string word; words >> word;) run.overrides.push_back(word);
  const std::string config = row.required("config");
  run.config = fs::path(config).is_absolute() ? fs::path(config) : folder / config;
  if (!config.empty()) check_run(row, run);
  for (const char* column : {"what", "time_us", "profile"}) {
    if (!row.text(column).empty())
      row.problem(column, "is of kernels and collectives: expected kind, or an empty cell");
  }
  return run;
}

void read_row(const MeasurementRow& row, const fs::path& folder, std::size_t line,
              Measurements& out) {
  const std::string kind = row.text("kind");
  if (kind.empty() || kind == "step") {
    out.runs.push_back(read_run(row, folder, line));
  } else if (kind == "kernel" || kind == "collective") {
    const PartKind part = kind == "kernel" ? PartKind::kKernel : PartKind::kCollective;
    out.parts.push_back(read_part(part, row, folder, line));
  } else {
    row.problem("kind", fmt::format("expected step, kernel or collective, got '{}'", kind));
  }
}

std::vector<std::string> read_head(const std::string& where, const std::string& line,
                                   Problems& problems) {
  std::vector<std::string> columns;
  if (!split_csv(line, columns)) problems.add(where, "a quote does not end");
  std::vector<std::string> known = kRequired;
  known.insert(known.end(), kOptional.begin(), kOptional.end());
  for (const std::string& column : columns) {
    if (std::find(known.begin(), known.end(), column) == known.end()) {
      const std::string nearest = nearest_name(column, known);
      problems.add(where + ":" + column,
                   fmt::format("unknown column{}; known are {}",
                               nearest.empty() ? "" : ", did you mean " + nearest + "?",
                               fmt::join(known, ", ")));
    }
    if (std::count(columns.begin(), columns.end(), column) > 1)
      problems.add(where + ":" + column, "occurs twice");
  }
  const auto has = [&](const char* column) {
    return std::find(columns.begin(), columns.end(), column) != columns.end();
  };
  if (!has("step_s") && !has("run") && !has("kind"))
    problems.add(where,
                 "the head has no column step_s: expected it, run (the folder of a measured run) "
                 "or kind (for kernels and collectives)");
  for (const std::string& column : kRequired) {
    if (std::find(columns.begin(), columns.end(), column) == columns.end())
      problems.add(where, fmt::format("the head has no column {}: expected at least {}", column,
                                      fmt::join(kRequired, ", ")));
  }
  return columns;
}

std::vector<const PublishedRow*> rows_of(const Measurements& measurements) {
  std::vector<const PublishedRow*> rows;
  for (const TrainingRun& run : measurements.runs) rows.push_back(&run.row);
  for (const MeasuredPart& part : measurements.parts) rows.push_back(&part.row);
  return rows;
}

void check_rows(const fs::path& file, const std::vector<const PublishedRow*>& rows) {
  std::set<std::string> ids;
  std::size_t fitted = 0;
  for (const PublishedRow* row : rows) {
    if (row->use == RowUse::kFit) ++fitted;
    if (!ids.insert(row->id).second)
      throw ConfigError(fmt::format("{}: the id \"{}\" is there twice", file.string(), row->id));
  }
  if (fitted < 2)
    throw ConfigError(fmt::format(
        "{}: {} row{} of use fit: expected at least 2, else a factor is that one row's error",
        file.string(), fitted, fitted == 1 ? "" : "s"));
}

}  // namespace

bool split_csv(const std::string& line, std::vector<std::string>& cells) {
  cells.assign(1, "");
  bool quoted = false, was_quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += line[++i];
    } else if (c == '"' && (quoted || trimmed(cells.back()).empty())) {
      quoted = !quoted;
      was_quoted = true;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
      was_quoted = false;
    } else if (!was_quoted || quoted) {
      cells.back() += c;
    }
  }
  for (std::string& cell : cells) cell = trimmed(cell);
  return !quoted;
}

Measurements read_measurements(const fs::path& file) {
  std::istringstream stream(read_input_file(file));
  Problems problems;
  std::vector<std::string> columns;
  Measurements out;
  std::size_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    const std::string where = fmt::format("{}:{}", file.string(), ++number);
    if (trimmed(line).empty() || trimmed(line).front() == '#') continue;
    if (columns.empty()) {
      columns = read_head(where, line, problems);
      if (!problems.empty()) break;
      continue;
    }
    std::vector<std::string> cells;
    if (!split_csv(line, cells)) {
      problems.add(where, "a quote does not end");
      continue;
    }
    if (cells.size() != columns.size()) {
      problems.add(where, fmt::format("expected {} cells ({}), got {}", columns.size(),
                                      fmt::join(columns, ", "), cells.size()));
      continue;
    }
    std::map<std::string, std::string> named;
    for (std::size_t i = 0; i < cells.size(); ++i) named[columns[i]] = cells[i];
    read_row(MeasurementRow(where, named, problems), file.parent_path(), number, out);
  }
  problems.throw_if_any();
  check_rows(file, rows_of(out));
  return out;
}

}  // namespace trellis::analysis
