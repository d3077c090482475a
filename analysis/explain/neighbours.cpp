#include "analysis/explain/neighbours.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/input_file.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/step_place.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;

constexpr double kEachRelease = 0.1;

/// The minor number of a release of Neuron, 28 of "2.28.0"; none: no release of Neuron.
std::optional<int> minor_of(const std::string& release) {
  if (!release.starts_with("2.")) return std::nullopt;
  return std::atoi(release.c_str() + 2);
}

/// The newest one that the row's own time is of; "": none.
std::string release_of(const PublishedRow& row) {
  std::string newest;
  for (const auto& [release, time_us] : row.measured_us) {
    const auto minor = minor_of(release);
    if (!minor || std::abs(time_us - row.time_us) > 1e-6 * row.time_us) continue;
    if (newest.empty() || *minor > *minor_of(newest)) newest = release;
  }
  return newest;
}

json read_predictions() {
  const std::filesystem::path file = published_directory() / "predicted.json";
  if (!why_no_input_file(file).empty()) return json::object();
  json document = json::parse(read_input_file(file), nullptr, false);
  if (document.is_discarded())
    throw ConfigError(file.string() + ": expected JSON, as scripts/refresh-outputs writes it");
  return document;
}

void add_prediction(const json& predictions, const TrainingRun& run, Neighbour& row) {
  for (const json& each : predictions.value("training", json::object()).value("rows", json())) {
    if (each.at("id") != row.id) continue;
    row.predicted_s = each.at("predicted_s").get<double>();
    const json micro_batch = each.value("micro_batch", json());
    if (run.telemetry && !micro_batch.is_null()) {
      row.micro_batch = {
          *run.telemetry,
          {micro_batch.at("device_s").get<double>(), micro_batch.at("idle_s").get<double>()}};
    }
  }
}

double percentile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

/// |error| of a subject's rows; of the generation's where there are any.
std::vector<double> errors_of(const json& predictions, const std::string& subject,
                              const std::string& generation) {
  std::vector<double> own, all;
  for (const json& row : predictions.value(subject, json::object()).value("rows", json())) {
    const double error = std::abs(row.at("error").get<double>());
    all.push_back(error);
    if (generation_of(row.value("instance", "")) == generation) own.push_back(error);
  }
  std::vector<double>& errors = own.empty() ? all : own;
  std::sort(errors.begin(), errors.end());
  return errors;
}

}  // namespace

std::vector<Neighbour> nearest_rows(const StepPlace& run, std::size_t most) {
  const json predictions = read_predictions();
  std::vector<Neighbour> rows;
  int newest = 0;
  for (const TrainingRun& published : read_training_runs()) {
    if (published.row.use == RowUse::kExcluded) continue;
    const trainer::RunCheck check = trainer::check_run_config(
        published.config.string(), published.overrides, published.row.instance);
    if (!check.problems.empty()) continue;
    Neighbour row;
    row.id = published.row.id;
    row.source = published.row.source;
    row.release = release_of(published.row);
    newest = std::max(newest, minor_of(row.release).value_or(0));
    row.place = step_place(check.config, published.row.instance, published.nodes);
    row.distance = distance_between(run, row.place);
    row.published_s = published.row.time_us * 1e-6;
    add_prediction(predictions, published, row);
    rows.push_back(std::move(row));
  }
  for (Neighbour& row : rows) {
    const auto minor = minor_of(row.release);
    if (!minor || *minor == newest) continue;
    row.distance.total += kEachRelease * (newest - *minor);
    row.distance.parts.emplace_back("release", kEachRelease * (newest - *minor));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Neighbour& a, const Neighbour& b) {
    return a.distance.total < b.distance.total;
  });
  if (rows.size() > most) rows.resize(most);
  return rows;
}

std::vector<PartAccuracy> part_accuracies(const std::string& generation) {
  const json predictions = read_predictions();
  std::vector<PartAccuracy> parts;
  const auto add = [&](const char* part, const char* subject) {
    const std::vector<double> errors = errors_of(predictions, subject, generation);
    if (errors.empty()) return;
    parts.push_back({part, subject, static_cast<std::int64_t>(errors.size()),
                     percentile(errors, 0.5), percentile(errors, 0.9), errors.back()});
  };
  add("matmul_ps", "kernels");
  add("other_compute_ps", "dma");
  for (const char* part :
       {"exposed_tp_ps", "exposed_pp_ps", "exposed_dp_ps", "exposed_cp_ps", "exposed_ep_ps"})
    add(part, "collectives");
  return parts;
}

}  // namespace trellis::analysis
