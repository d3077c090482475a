#include "analysis/calibrate/calibrate_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "analysis/accuracy/score.h"
#include "trainer/config/run_config.h"
#include "analysis/report/step_place.h"
#include "analysis/report/text_table.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;

double measured(const TrainingRun& run) { return run.row.time_us * 1e-6; }

/// Rows of one use, the largest error after the fit first.
std::vector<std::size_t> rows_of(const CalibrateResult& result, RowUse use) {
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < result.runs.size(); ++i) {
    if (result.runs[i].row.use == use) rows.push_back(i);
  }
  const auto error = [&](std::size_t i) {
    return std::abs(std::log(result.predictions[i].parts.seconds(result.fit.factors) /
                             measured(result.runs[i])));
  };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](std::size_t a, std::size_t b) { return error(a) > error(b); });
  return rows;
}

std::vector<double> errors_of(const CalibrateResult& result, const std::vector<std::size_t>& rows,
                              const StepFactors& factors) {
  std::vector<double> errors;
  for (const std::size_t i : rows)
    errors.push_back(result.predictions[i].parts.seconds(factors) / measured(result.runs[i]) - 1);
  return errors;
}

std::string section_text(const CalibrateResult& result, const char* title, RowUse use) {
  const std::vector<std::size_t> rows = rows_of(result, use);
  if (rows.empty()) return fmt::format("\n{}: none\n", title);
  TextTable table({{"row", TextTable::Align::kLeft},
                   {"machine", TextTable::Align::kLeft},
                   {"measured s"},
                   {"simulated s"},
                   {"error"},
                   {"calibrated s"},
                   {"error"}});
  for (const std::size_t i : rows) {
    const TrainingRun& run = result.runs[i];
    const StepParts& parts = result.predictions[i].parts;
    const double before = parts.seconds({}), after = parts.seconds(result.fit.factors);
    table.add({run.row.id, fmt::format("{} × {}", run.nodes, run.row.instance),
               fmt::format("{:.4f}", measured(run)), fmt::format("{:.4f}", before),
               fmt::format("{:+.1f} %", 100 * (before / measured(run) - 1)),
               fmt::format("{:.4f}", after),
               fmt::format("{:+.1f} %", 100 * (after / measured(run) - 1))});
  }
  const Summary before = summarize(errors_of(result, rows, {})),
                after = summarize(errors_of(result, rows, result.fit.factors));
  return fmt::format("\n{}\n{}  median |error| {:.1f} % → {:.1f} %, worst {:.1f} % → {:.1f} %\n",
                     title, table.text(), 100 * before.median, 100 * after.median,
                     100 * before.worst, 100 * after.worst);
}

json rows_json(const CalibrateResult& result, RowUse use) {
  json out = json::array();
  for (const std::size_t i : rows_of(result, use)) {
    const TrainingRun& run = result.runs[i];
    const StepParts& parts = result.predictions[i].parts;
    const double after = parts.seconds(result.fit.factors);
    out.push_back({{"id", run.row.id},
                   {"instance", run.row.instance},
                   {"nodes", run.nodes},
                   {"measured_s", measured(run)},
                   {"simulated_s", parts.seconds({})},
                   {"communication_s", parts.communication_s},
                   {"calibrated_s", after},
                   {"error_before", parts.seconds({}) / measured(run) - 1},
                   {"error", after / measured(run) - 1}});
  }
  return out;
}

ValidatedRecord record_of(const CalibrateResult& result, RowUse use) {
  std::vector<ComparedStep> steps;
  for (const std::size_t i : rows_of(result, use)) {
    const TrainingRun& run = result.runs[i];
    const trainer::RunConfig config =
        trainer::load_run_config(run.config.string(), run.overrides, run.row.instance);
    steps.push_back({run.row.id, run.family, run.row.size,
                     step_place(config, run.row.instance, run.nodes), measured(run),
                     result.predictions[i].parts.seconds(result.fit.factors)});
  }
  return make_validated_record(std::move(steps));
}

}  // namespace

CalibrateResult calibrate(std::vector<TrainingRun> runs, std::vector<Prediction> predictions,
                          const std::string& source) {
  CalibrateResult result{std::move(runs), std::move(predictions), {}, {}};
  Problems problems;
  std::vector<MeasuredParts> rows;
  for (std::size_t i = 0; i < result.runs.size(); ++i) {
    if (!result.predictions[i].error.empty())
      problems.add(source + ": " + result.runs[i].row.id, result.predictions[i].error);
    if (result.runs[i].row.use == RowUse::kFit)
      rows.push_back({result.predictions[i].parts, measured(result.runs[i])});
  }
  problems.throw_if_any();
  result.fit = fit_factors(rows);
  Calibration& calibration = result.calibration;
  calibration.source = source;
  calibration.fitted_rows = static_cast<std::int64_t>(rows.size());
  calibration.held_out_rows = static_cast<std::int64_t>(result.runs.size() - rows.size());
  calibration.communication_fitted = result.fit.communication_fitted;
  calibration.factors = result.fit.factors;
  calibration.record =
      record_of(result, calibration.held_out_rows > 0 ? RowUse::kTest : RowUse::kFit);
  return result;
}

std::string calibrate_text(const CalibrateResult& result) {
  const auto& factors = result.fit.factors;
  std::string text = fmt::format(
      "Fitted by least squares of log(calibrated / measured), each factor between {} and {}; "
      "evidence: fitted (user)\n  compute        × {:.4f}  matmul, other compute, bubble, "
      "optimizer, other\n"
      "  communication  × {:.4f}  exposed TP, PP and DP communication{}\n",
      StepFactors::kLeast, StepFactors::kMost, factors.compute, factors.communication,
      result.fit.communication_fitted
          ? ""
          : ": the rows of use fit cannot distinguish it from compute (three "
            "rows, shares that differ by 5 points), both have one factor");
  if (result.fit.at_bound)
    text +=
        "warning: a factor is at its bound: something else than the speed differs, such as the "
        "batch, the layout or the unit of time\n";
  text += section_text(result, "Fitted rows", RowUse::kFit) +
          section_text(result, "Held-out rows, which nothing was fitted to", RowUse::kTest);
  if (result.calibration.held_out_rows == 0)
    text +=
        "note: no row was held out: the range of calibrated steps comes from the rows that they "
        "were fitted to, and is too good\n";
  return text;
}

json calibrate_json(const CalibrateResult& result) {
  return {{"schema", "trellis.calibrate/1"},
          {"source", result.calibration.source},
          {"evidence", "fitted (user)"},
          {"factors",
           {{"compute", result.fit.factors.compute},
            {"communication", result.fit.factors.communication}}},
          {"bounds", {StepFactors::kLeast, StepFactors::kMost}},
          {"communication_fitted", result.fit.communication_fitted},
          {"at_bound", result.fit.at_bound},
          {"fit", rows_json(result, RowUse::kFit)},
          {"test", rows_json(result, RowUse::kTest)}};
}

}  // namespace trellis::analysis
