#include "traces/report/calibration.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/number_text.h"
#include "base/yaml/yaml.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {

namespace {

using nlohmann::json;

constexpr const char* kSchema = "trellis.calibration/2";

constexpr std::array<std::string_view, 3> kBases = {"own", "shared", "unseen"};

FactorBasis read_basis(const YamlMap& map, const char* key) {
  const auto word = map.required<std::string>(key);
  const auto found = std::find(kBases.begin(), kBases.end(), word);
  if (found != kBases.end()) return static_cast<FactorBasis>(found - kBases.begin());
  if (map.has(key))
    map.problem(key, fmt::format("expected {}, got {}", fmt::join(kBases, ", "), word));
  return FactorBasis::kOwn;
}

double read_factor(const YamlMap& map, const char* key) {
  const auto factor = map.required<double>(key);
  const bool good = factor >= StepFactors::kLeast && factor <= StepFactors::kMost;
  if (!good && map.has(key))
    map.problem(key, fmt::format("must be between {} and {}, got {}", StepFactors::kLeast,
                                 StepFactors::kMost, factor));
  return good ? factor : 1;
}

/// Without steps of the user's own the published ones.
std::optional<ValidatedRecord> steps_for_range(const Calibration& calibration) {
  return calibration.record.steps.empty() ? read_validated_record() : calibration.record;
}

}  // namespace

std::string_view name(FactorBasis basis) { return kBases.at(static_cast<std::size_t>(basis)); }

StepParts parts_of(const StepView& step) {
  StepParts parts;
  for (const NamedTime& part : step.parts) {
    const bool communication = part.name.ends_with(" comm");
    (communication ? parts.communication_s : parts.compute_s) +=
        static_cast<double>(part.ps) * 1e-12;
  }
  return parts;
}

std::string to_yaml(const Calibration& calibration) {
  return fmt::format(
             "# A user's measurements as factors on simulated steps. Written by `trellis "
             "calibrate`, applied by `trellis simulate --calibration`.\n"
             "# compute: matmul, other compute, bubble, optimizer, other; communication: what the "
             "step waits for. basis: own, shared (both have one factor), unseen (not measured: "
             "1).\n"
             "schema: {}\nevidence: fitted (user)\nsource: \"{}\"\nfitted_rows: {}\nheld_out_rows: "
             "{}\nbasis: {{compute: {}, communication: {}}}\nfactors: {{compute: {:.6g}, "
             "communication: {:.6g}}}\n",
             kSchema, calibration.source, calibration.fitted_rows, calibration.held_out_rows,
             name(calibration.compute), name(calibration.communication),
             calibration.factors.compute, calibration.factors.communication) +
         (calibration.record.steps.empty() ? "" : steps_yaml(calibration.record));
}

Calibration read_calibration(const std::filesystem::path& file) {
  const YamlDocument document = YamlDocument::load(file);
  const YamlMap root = document.root();
  if (const auto schema = root.required<std::string>("schema");
      schema != kSchema && root.has("schema")) {
    root.problem("schema", fmt::format("expected {}, which `trellis calibrate` writes, got {}",
                                       kSchema, schema));
  }
  (void)root.required<std::string>("evidence");
  Calibration calibration;
  calibration.source = root.required<std::string>("source");
  calibration.fitted_rows = root.required<std::int64_t>("fitted_rows");
  calibration.held_out_rows = root.required<std::int64_t>("held_out_rows");
  const YamlMap basis = root.map("basis");
  calibration.compute = read_basis(basis, "compute");
  calibration.communication = read_basis(basis, "communication");
  basis.reject_unknown();
  const YamlMap factors = root.map("factors");
  calibration.factors = {read_factor(factors, "compute"), read_factor(factors, "communication")};
  factors.reject_unknown();
  if (root.has("steps")) calibration.record = read_steps(root);
  root.reject_unknown();
  document.problems().throw_if_any();
  return calibration;
}

json calibrated_json(const Calibration& calibration, const json& step_report,
                     const StepPlace& place, std::int64_t tokens_per_step) {
  const double seconds = parts_of(view_step(step_report)).seconds(calibration.factors);
  return {
      {"evidence", "fitted (user)"},
      {"source", calibration.source},
      {"factors",
       {{"compute", calibration.factors.compute},
        {"communication", calibration.factors.communication}}},
      {"step_time_ms", seconds * 1e3},
      {"tokens_per_s", seconds > 0 ? static_cast<double>(tokens_per_step) / seconds : 0},
      {"validity", to_json(judge_validity(steps_for_range(calibration), place), seconds * 1e3)}};
}

std::string calibrated_text(const json& report) {
  const auto found = report.find("calibrated");
  if (found == report.end()) return "";
  const json& range = found->at("validity").value("step_time_range_ms", json());
  return fmt::format(
      "Calibrated step {} ms{}, {} tokens/s, evidence: fitted (user): compute × {:.4g}, "
      "communication × {:.4g} ({})\n{}",
      significant(found->at("step_time_ms").get<double>()),
      range.is_null() ? ""
                      : fmt::format(" (range {} to {} ms)", short_number(range[0].get<double>()),
                                    short_number(range[1].get<double>())),
      rate_text(found->at("tokens_per_s").get<double>()),
      found->at("factors").at("compute").get<double>(),
      found->at("factors").at("communication").get<double>(),
      found->at("source").get<std::string>(), validity_line(found->at("validity")));
}

}  // namespace trellis::analysis
