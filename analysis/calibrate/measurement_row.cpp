#include "analysis/calibrate/measurement_row.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "base/nearest.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"

namespace trellis::analysis {

std::string MeasurementRow::text(const std::string& column) const {
  const auto found = cells_.find(column);
  return found == cells_.end() ? "" : found->second;
}

std::string MeasurementRow::required(const std::string& column) const {
  const std::string value = text(column);
  if (value.empty()) problem(column, "is missing");
  return value;
}

void MeasurementRow::problem(const std::string& column, const std::string& what) const {
  problems_.add(where_ + ":" + column, what);
}

double MeasurementRow::time(const std::string& column, const std::string& unit) const {
  const std::string cell = required(column);
  double value = 0;
  const bool good = parse_whole(cell, value) && std::isfinite(value) && value > 0;
  if (!good && !cell.empty())
    problem(column, fmt::format("expected {}, above 0, got '{}'", unit, cell));
  return good ? value : 1;
}

int MeasurementRow::nodes() const {
  const std::string cell = text("nodes");
  int nodes = 1;
  if (!cell.empty() && (!parse_whole(cell, nodes) || nodes < 1)) {
    problem("nodes", fmt::format("expected a number of instances of at least 1, got '{}'", cell));
    return 1;
  }
  return nodes;
}

std::string MeasurementRow::instance() const {
  const std::string name = required("instance");
  const std::vector<std::string> known = sim::instance_names();
  if (!name.empty() && std::find(known.begin(), known.end(), name) == known.end()) {
    const std::string nearest = nearest_name(name, known);
    problem("instance", fmt::format("unknown machine '{}'{}; `trellis describe` lists them", name,
                                    nearest.empty() ? "" : ", did you mean '" + nearest + "'?"));
    return "";
  }
  return name;
}

RowUse MeasurementRow::use() const {
  const std::string use = required("use");
  if (use == "fit") return RowUse::kFit;
  if (use != "test" && !use.empty())
    problem("use", fmt::format("expected fit or test, got '{}'", use));
  return RowUse::kTest;
}

std::string MeasurementRow::id(std::size_t line) const {
  std::string id = text("id").empty() ? fmt::format("line-{}", line) : text("id");
  // A step's simulation has a folder of that name.
  if (std::filesystem::path(id).filename() != id || id == "." || id == "..")
    problem("id", fmt::format("expected a plain name, got \"{}\"", id));
  return id;
}

}  // namespace trellis::analysis
