#include "analysis/calibrate/calibrate_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/accuracy/score.h"
#include "base/error.h"
#include "traces/report/text_table.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"
#include "trainer/config/step_place.h"

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

StepParts parts_of(const MeasuredPart& part) {
  const double seconds = part.model_us * 1e-6;
  return part.kind == PartKind::kKernel ? StepParts{seconds, 0} : StepParts{0, seconds};
}

/// Kernels and collectives, those of one use together, in the order of the file.
std::string parts_text(const CalibrateResult& result) {
  if (result.parts.empty()) return "";
  TextTable table({{"row", TextTable::Align::kLeft},
                   {"use", TextTable::Align::kLeft},
                   {"machine", TextTable::Align::kLeft},
                   {"what", TextTable::Align::kLeft},
                   {"measured us"},
                   {"model us"},
                   {"error"},
                   {"calibrated us"},
                   {"error"}});
  for (const RowUse use : {RowUse::kFit, RowUse::kTest}) {
    for (const MeasuredPart& part : result.parts) {
      if (part.row.use != use) continue;
      const double after = parts_of(part).seconds(result.fit.factors) * 1e6;
      table.add({part.row.id, std::string(name(use)), part.row.instance, part.what,
                 fmt::format("{:.1f}", part.row.time_us), fmt::format("{:.1f}", part.model_us),
                 fmt::format("{:+.1f} %", 100 * (part.model_us / part.row.time_us - 1)),
                 fmt::format("{:.1f}", after),
                 fmt::format("{:+.1f} %", 100 * (after / part.row.time_us - 1))});
    }
  }
  return "\nKernels and collectives\n" + table.text();
}

json parts_json(const CalibrateResult& result) {
  json out = json::array();
  for (const MeasuredPart& part : result.parts) {
    const double after = parts_of(part).seconds(result.fit.factors) * 1e6;
    out.push_back({{"id", part.row.id},
                   {"kind", name(part.kind)},
                   {"what", part.what},
                   {"instance", part.row.instance},
                   {"use", name(part.row.use)},
                   {"measured_us", part.row.time_us},
                   {"model_us", part.model_us},
                   {"calibrated_us", after},
                   {"error_before", part.model_us / part.row.time_us - 1},
                   {"error", after / part.row.time_us - 1}});
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

namespace {

/// The rows that are fitted; problems are rows that could not be predicted.
std::vector<MeasuredParts> fit_rows(const CalibrateResult& result, Problems& problems) {
  std::vector<MeasuredParts> rows;
  for (std::size_t i = 0; i < result.runs.size(); ++i) {
    if (!result.predictions[i].error.empty())
      problems.add(result.calibration.source + ": " + result.runs[i].row.id,
                   result.predictions[i].error);
    if (result.runs[i].row.use == RowUse::kFit)
      rows.push_back({result.predictions[i].parts, measured(result.runs[i])});
  }
  for (const MeasuredPart& part : result.parts) {
    if (part.row.use == RowUse::kFit) rows.push_back({parts_of(part), part.row.time_us * 1e-6});
  }
  return rows;
}

}  // namespace

CalibrateResult calibrate(Measurements measurements, std::vector<Prediction> predictions,
                          const std::string& source) {
  CalibrateResult result{
      std::move(measurements.runs), std::move(predictions), std::move(measurements.parts), {}, {}};
  Calibration& calibration = result.calibration;
  calibration.source = source;
  Problems problems;
  const std::vector<MeasuredParts> rows = fit_rows(result, problems);
  problems.throw_if_any();
  result.fit = fit_factors(rows);
  calibration.fitted_rows = static_cast<std::int64_t>(rows.size());
  calibration.held_out_rows =
      static_cast<std::int64_t>(result.runs.size() + result.parts.size() - rows.size());
  calibration.compute = result.fit.compute;
  calibration.communication = result.fit.communication;
  calibration.factors = result.fit.factors;
  calibration.record =
      record_of(result, rows_of(result, RowUse::kTest).empty() ? RowUse::kFit : RowUse::kTest);
  return result;
}

namespace {

std::string basis_text(FactorBasis basis, const char* unseen) {
  switch (basis) {
    case FactorBasis::kOwn: return "";
    case FactorBasis::kUnseen: return fmt::format(": no row of use fit has {}", unseen);
    case FactorBasis::kShared:
      return ": the rows of use fit cannot distinguish the two (three rows, shares that differ by "
             "5 points, or kernels and collectives), both have one factor";
  }
  return "";
}

}  // namespace

std::string calibrate_text(const CalibrateResult& result) {
  const auto& factors = result.fit.factors;
  std::string text = fmt::format(
      "Fitted by least squares of log(calibrated / measured), each factor between {} and {}; "
      "evidence: fitted (user)\n  compute        × {:.4f}  matmul, other compute, bubble, "
      "optimizer, other{}\n"
      "  communication  × {:.4f}  exposed communication{}\n",
      StepFactors::kLeast, StepFactors::kMost, factors.compute,
      result.fit.compute == FactorBasis::kUnseen ? basis_text(result.fit.compute, "computation")
                                                 : "",
      factors.communication, basis_text(result.fit.communication, "communication"));
  if (result.fit.at_bound)
    text +=
        "warning: a factor is at its bound: something else than the speed differs, such as the "
        "batch, the layout or the unit of time\n";
  text += parts_text(result);
  if (result.runs.empty())
    return text +
           "note: no step was measured: the range of calibrated steps is that of the published "
           "steps\n";
  text += section_text(result, "Fitted steps", RowUse::kFit) +
          section_text(result, "Held-out steps, which nothing was fitted to", RowUse::kTest);
  if (rows_of(result, RowUse::kTest).empty())
    text +=
        "note: no step was held out: the range of calibrated steps comes from the steps that they "
        "were fitted to, and is too good\n";
  return text;
}

json calibrate_json(const CalibrateResult& result) {
  return {
      {"schema", "trellis.calibrate/1"},
      {"source", result.calibration.source},
      {"evidence", "fitted (user)"},
      {"factors",
       {{"compute", result.fit.factors.compute},
        {"communication", result.fit.factors.communication}}},
      {"bounds", {StepFactors::kLeast, StepFactors::kMost}},
      {"basis",
       {{"compute", name(result.fit.compute)}, {"communication", name(result.fit.communication)}}},
      {"at_bound", result.fit.at_bound},
      {"parts", parts_json(result)},
      {"fit", rows_json(result, RowUse::kFit)},
      {"test", rows_json(result, RowUse::kTest)}};
}

}  // namespace trellis::analysis
