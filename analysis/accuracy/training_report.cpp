#include "analysis/accuracy/training_report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/accuracy/score.h"
#include "base/error.h"
#include "traces/report/validity.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"
#include "trainer/config/step_place.h"

namespace trellis::analysis {
namespace {

struct Entry {
  const TrainingRun* run;
  const Prediction* prediction;
  [[nodiscard]] ScoredRow scored() const { return {run->row, prediction->step_s * 1e6}; }
};

/// The rows in three parts: judged; run, but excluded; not run.
struct Parts {
  std::vector<Entry> judged, excluded, failed;
};

Parts split(const std::vector<TrainingRun>& runs, const std::vector<Prediction>& predictions) {
  Parts parts;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Entry entry{&runs[i], &predictions[i]};
    if (!entry.prediction->error.empty()) {
      parts.failed.push_back(entry);
    } else {
      (runs[i].row.use == RowUse::kExcluded ? parts.excluded : parts.judged).push_back(entry);
    }
  }
  for (auto* list : {&parts.judged, &parts.excluded}) {
    std::stable_sort(list->begin(), list->end(), [](const Entry& a, const Entry& b) {
      return std::abs(a.scored().error()) > std::abs(b.scored().error());
    });
  }
  return parts;
}

std::vector<ScoredRow> scored(const std::vector<Entry>& entries) {
  std::vector<ScoredRow> rows;
  for (const Entry& entry : entries) rows.push_back(entry.scored());
  return rows;
}

/// "9.55 - 10.2" s over the releases; "" when there is one.
std::string range_text(const PublishedRow& row) {
  double least = row.time_us, most = row.time_us;
  for (const auto& [release, time] : row.measured_us)
    least = std::min(least, time), most = std::max(most, time);
  return least == most ? "" : fmt::format("{:.4g} - {:.4g}", least * 1e-6, most * 1e-6);
}

std::string lines_of(const std::vector<Entry>& entries, std::size_t width) {
  std::string text;
  for (const Entry& entry : entries) {
    const PublishedRow& row = entry.run->row;
    text += fmt::format(
        "{:<{}}  {:>11.4f}  {:>11.4f}  {:>+7.1f}%  {:>16}  {:>5.1f}%  {:<8}  {:>2} x {:<13}  {}\n",
        row.id, width, row.time_us * 1e-6, entry.prediction->step_s, 100 * entry.scored().error(),
        range_text(row), 100 * entry.prediction->mfu, name(row.use), entry.run->nodes, row.instance,
        row.source);
  }
  return text;
}

/// Properties with which the signed error may correlate.
const std::vector<std::pair<const char*, double (*)(const Entry&)>>& trends() {
  static const std::vector<std::pair<const char*, double (*)(const Entry&)>> table = {
      {"parameters",
       [](const Entry& entry) { return static_cast<double>(entry.prediction->parameters); }},
      {"nodes", [](const Entry& entry) { return static_cast<double>(entry.run->nodes); }},
      {"generation", [](const Entry& entry) {
         return entry.run->row.instance.starts_with("trn1")   ? 1.0
                : entry.run->row.instance.starts_with("trn2") ? 2.0
                                                              : 3.0;
       }}};
  return table;
}

double trend(const std::vector<Entry>& entries, double (*property)(const Entry&)) {
  std::vector<double> x, y;
  for (const Entry& entry : entries)
    x.push_back(property(entry)), y.push_back(entry.scored().error());
  return spearman(x, y);
}

/// The |rho| that chance alone exceeds once in twenty.
double chance(std::size_t rows) {
  return rows < 3 ? 1 : std::min(1.0, 1.96 / std::sqrt(static_cast<double>(rows - 1)));
}

std::string trend_text(const std::vector<Entry>& entries) {
  std::string text = "\nTrend of the signed error (Spearman):";
  for (const auto& [what, property] : trends())
    text += fmt::format(" {} {:+.2f}", what, trend(entries, property));
  return text + fmt::format("; of {} rows chance alone exceeds {:.2f} once in 20\n", entries.size(),
                            chance(entries.size()));
}

std::vector<FitRow> fit_rows(const std::vector<Entry>& entries) {
  std::vector<FitRow> rows;
  for (const Entry& entry : entries)
    rows.push_back({entry.prediction->simulated, entry.run->row.time_us * 1e-6, entry.run->family});
  return rows;
}

std::string left_out_text(const std::vector<Entry>& entries) {
  const Summary s = summarize(leave_one_family_out(fit_rows(entries)));
  return fmt::format(
      "Each family with software.* fitted to the others only: median {:.1f}%, p90 {:.1f}%, worst "
      "{:.1f}%\n",
      100 * s.median, 100 * s.p90, 100 * s.worst);
}

/// The number that these rows would choose.
std::string best_software_text(const std::vector<Entry>& entries) {
  const auto rows = fit_rows(entries);
  const auto taker = std::find_if(rows.begin(), rows.end(), [](const FitRow& row) {
    return row.step.software.stack == kFittedStack;
  });
  if (taker == rows.end()) return "";
  const Picoseconds used = taker->step.software.step_overhead;
  return fmt::format(
      "software.step_overhead of {} that fits these rows best (in use): {:.2f} s ({:.2f} s)\n",
      kFittedStack, to_seconds(fit_step_overhead(rows, used)), to_seconds(used));
}

/// Device and host, each for itself, where both were seen.
std::string telemetry_text(const std::vector<Entry>& entries) {
  std::string text;
  for (const Entry& entry : entries) {
    if (!entry.run->telemetry) continue;
    const MicroBatchTime &published = *entry.run->telemetry, &model = entry.prediction->micro_batch;
    text += fmt::format("{:<8}  {:>9.3f}  {:>9.3f}  {:>+7.1f}%  {:>9.3f}  {:>9.3f}  {:>+7.1f}%\n",
                        entry.run->row.id, published.device, model.device,
                        100 * (model.device / published.device - 1), published.idle, model.idle,
                        100 * (model.idle / published.idle - 1));
  }
  if (text.empty()) return text;
  return fmt::format(
             "\nTelemetry, seconds per micro-batch: cores at work, and waiting for the host\n"
             "{:<8}  {:>9}  {:>9}  {:>8}  {:>9}  {:>9}  {:>8}\n",
             "row", "device", "model", "error", "waiting", "model", "error") +
         text;
}

nlohmann::json left_out_json(const std::vector<Entry>& entries) {
  const std::vector<double> errors =
      entries.empty() ? std::vector<double>{} : leave_one_family_out(fit_rows(entries));
  nlohmann::json rows = nlohmann::json::object();
  for (std::size_t i = 0; i < entries.size(); ++i) rows[entries[i].run->row.id] = errors[i];
  const Summary s = summarize(errors);
  return {{"median", s.median}, {"p90", s.p90}, {"worst", s.worst}, {"rows", rows}};
}

/// Predictions are those with the number fitted to steps found without the step's family.
ValidatedRecord record_of(const std::vector<Entry>& entries) {
  if (entries.empty()) return {};
  const std::vector<double> errors = leave_one_family_out(fit_rows(entries));
  std::vector<ComparedStep> steps;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const TrainingRun& run = *entries[i].run;
    const trainer::RunConfig config =
        trainer::load_run_config(run.config.string(), run.overrides, run.row.instance);
    const double published = run.row.time_us * 1e-6;
    steps.push_back({run.row.id, run.family, run.row.size,
                     step_place(config, run.row.instance, run.nodes), published,
                     published * (1 + errors[i])});
  }
  return make_validated_record(std::move(steps));
}

std::string ranges_text(const std::vector<Entry>& entries) {
  const CrossValidation ranges = cross_validate(record_of(entries));
  return fmt::format(
      "Ranges of steps whose families the record does not have: {} of {} hold; of those called "
      "validated {} of {}, with a median width of ±{:.1f}%\n",
      ranges.within, ranges.steps, ranges.validated_within, ranges.validated,
      100 * (ranges.median_factor - 1));
}

nlohmann::json ranges_json(const std::vector<Entry>& entries) {
  const CrossValidation ranges = cross_validate(record_of(entries));
  return {{"steps", ranges.steps},
          {"within", ranges.within},
          {"validated", ranges.validated},
          {"validated_within", ranges.validated_within},
          {"median_factor", ranges.median_factor}};
}

nlohmann::json to_json(const Entry& entry) {
  const PublishedRow& row = entry.run->row;
  nlohmann::json measured = nlohmann::json::object();
  for (const auto& [release, time] : row.measured_us) measured[release] = time * 1e-6;
  std::vector<std::string> groups = {row.group};
  groups.insert(groups.end(), row.also.begin(), row.also.end());
  nlohmann::json out = {{"id", row.id},
                        {"groups", groups},
                        {"use", name(row.use)},
                        {"instance", row.instance},
                        {"nodes", entry.run->nodes},
                        {"source", row.source},
                        {"published_s", row.time_us * 1e-6},
                        {"measured_s", measured}};
  if (!row.reason.empty()) out["reason"] = row.reason;
  if (!entry.prediction->error.empty()) {
    out["error_text"] = entry.prediction->error;
    out["exit_code"] = entry.prediction->exit_code;
    return out;
  }
  out["predicted_s"] = entry.prediction->step_s;
  out["simulated_s"] = entry.prediction->simulated.seconds;
  const MicroBatchTime& predicted = entry.prediction->micro_batch;
  out["micro_batch"] = {{"device_s", predicted.device}, {"idle_s", predicted.idle}};
  if (const auto& published = entry.run->telemetry)
    out["telemetry"] = {{"device_s", published->device}, {"idle_s", published->idle}};
  out["error"] = entry.scored().error();
  out["parameters"] = entry.prediction->parameters;
  out["mfu"] = entry.prediction->mfu;
  return out;
}

nlohmann::json to_json(const std::vector<Entry>& entries) {
  nlohmann::json out = nlohmann::json::array();
  for (const Entry& entry : entries) out.push_back(to_json(entry));
  return out;
}

}  // namespace

std::string training_text(const std::vector<TrainingRun>& runs,
                          const std::vector<Prediction>& predictions) {
  const Parts parts = split(runs, predictions);
  std::size_t width = 24;
  for (const TrainingRun& run : runs) width = std::max(width, run.row.id.size());
  const std::string head = fmt::format(
      "{:<{}}  {:>11}  {:>11}  {:>8}  {:>16}  {:>6}  {:<8}  {:<18}  {}\n", "row", width,
      "published s", "model s", "error", "releases s", "MFU", "use", "machine", "source");
  std::string text =
      "Accuracy of training: published steps compared with the model, worst first (error = model / "
      "published - 1)\n\n";
  if (!parts.judged.empty()) {
    text += head + lines_of(parts.judged, width) + "\n" +
            summaries_text(scored(parts.judged), width) + trend_text(parts.judged) +
            left_out_text(parts.judged) + ranges_text(parts.judged) +
            best_software_text(parts.judged);
    text += telemetry_text(parts.judged);
  }
  if (!parts.excluded.empty())
    text += "\nSeparate, not in the sums:\n" + head + lines_of(parts.excluded, width);
  for (const Entry& entry : parts.excluded)
    text += fmt::format("  {}: {}\n", entry.run->row.id, entry.run->row.reason);
  if (!parts.failed.empty()) text += "\nNot run:\n";
  for (const Entry& entry : parts.failed) {
    const std::string reason =
        entry.run->row.reason.empty() ? "" : fmt::format(" (excluded: {})", entry.run->row.reason);
    text += fmt::format("{:<{}}  {:>11.4f} s{}: exit code {}: {}\n", entry.run->row.id, width,
                        entry.run->row.time_us * 1e-6, reason, entry.prediction->exit_code,
                        entry.prediction->error);
  }
  return text;
}

nlohmann::json training_json(const std::vector<TrainingRun>& runs,
                             const std::vector<Prediction>& predictions) {
  const Parts parts = split(runs, predictions);
  nlohmann::json trend_of = nlohmann::json::object();
  for (const auto& [what, property] : trends()) trend_of[what] = trend(parts.judged, property);
  return {{"schema", "trellis.accuracy/1"},
          {"subject", "training"},
          {"rows", to_json(parts.judged)},
          {"summaries", summaries_json(scored(parts.judged))},
          {"trend", trend_of},
          {"trend_by_chance", chance(parts.judged.size())},
          {"leave_one_family_out", left_out_json(parts.judged)},
          {"cross_validation", ranges_json(parts.judged)},
          {"excluded", to_json(parts.excluded)},
          {"failed", to_json(parts.failed)}};
}

ValidatedRecord validated_record(const std::vector<TrainingRun>& runs,
                                 const std::vector<Prediction>& predictions) {
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].row.use == RowUse::kExcluded) continue;
    if (!predictions[i].error.empty())
      throw ConfigError(fmt::format(
          "--write-validated: {} has no prediction, so that the record would miss it: {}",
          runs[i].row.id, predictions[i].error));
    entries.push_back({&runs[i], &predictions[i]});
  }
  if (entries.empty())
    throw ConfigError("--write-validated: no row judges: expected rows of use fit or test");
  return record_of(entries);
}

int exit_code_of(const std::vector<Prediction>& predictions) {
  const auto failed =
      std::find_if(predictions.begin(), predictions.end(),
                   [](const Prediction& prediction) { return !prediction.error.empty(); });
  return failed == predictions.end() ? 0 : failed->exit_code;
}

}  // namespace trellis::analysis
