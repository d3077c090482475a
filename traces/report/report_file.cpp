#include "traces/report/report_file.h"

#include <array>

#include "base/error.h"
#include "base/escape.h"
#include "base/files/input_file.h"
#include "base/json/json_text.h"
#include "base/yaml/yaml.h"
#include "traces/report/json_form.h"
#include "traces/report/measured_step.h"

namespace trellis::analysis {

namespace {

using nlohmann::json;

constexpr std::array<Key, 14> kReport{{{"verb", Form::kText},
                                       {"name", Form::kText},
                                       {"device", Form::kText},
                                       {"world_size", Form::kCount},
                                       {"tensor_model_parallel_size", Form::kCount},
                                       {"pipeline_model_parallel_size", Form::kCount},
                                       {"data_parallel_size", Form::kCount},
                                       {"num_microbatches", Form::kCount},
                                       {"parameters", Form::kInteger},
                                       {"tokens_per_step", Form::kCount},
                                       {"model_flops_per_step", Form::kNumber},
                                       {"precision", Form::kText},
                                       {"steps", Form::kInteger},
                                       {"interrupted", Form::kBool}}};
constexpr std::array<Key, 2> kLosses{{{"first_loss", Form::kNumber}, {"last_loss", Form::kNumber}}};
constexpr std::array<Key, 6> kRates{{{"instance", Form::kText},
                                     {"nodes", Form::kCount},
                                     {"step_time_ms", Form::kNumber},
                                     {"tokens_per_s", Form::kNumber},
                                     {"mfu", Form::kNumber},
                                     {"mfu_denominator_flops", Form::kNumber}}};
constexpr std::array<Key, 2> kMeasuredRates{
    {{"step_time_ms", Form::kNumber}, {"tokens_per_s", Form::kNumber}}};
constexpr std::array<Key, 3> kValidity{
    {{"status", Form::kText}, {"reasons", Form::kList}, {"basis", Form::kText}}};
constexpr std::array<Key, 6> kCalibrated{{{"evidence", Form::kText},
                                          {"source", Form::kText},
                                          {"factors", Form::kMap},
                                          {"step_time_ms", Form::kNumber},
                                          {"tokens_per_s", Form::kNumber},
                                          {"validity", Form::kMap}}};
constexpr std::array<Key, 2> kFactors{
    {{"compute", Form::kNumber}, {"communication", Form::kNumber}}};
constexpr std::array<Key, 7> kStep{{{"step_time_ps", Form::kCount},
                                    {"evidence", Form::kText},
                                    {"breakdown", Form::kList},
                                    {"programs", Form::kList},
                                    {"links", Form::kList},
                                    {"coverage", Form::kMap},
                                    {"peak_flops_per_core", Form::kNumber}}};
constexpr std::array<Key, 10> kBreakdown{{{"rank", Form::kInteger},
                                          {"total_ps", Form::kInteger},
                                          {"matmul_ps", Form::kInteger},
                                          {"other_compute_ps", Form::kInteger},
                                          {"exposed_tp_ps", Form::kInteger},
                                          {"exposed_pp_ps", Form::kInteger},
                                          {"exposed_dp_ps", Form::kInteger},
                                          {"bubble_ps", Form::kInteger},
                                          {"optimizer_ps", Form::kInteger},
                                          {"other_ps", Form::kInteger}}};
constexpr std::array<Key, 4> kProgram{{{"name", Form::kText},
                                       {"hash", Form::kText},
                                       {"launches", Form::kInteger},
                                       {"device_time_us", Form::kNumber}}};
constexpr std::array<Key, 3> kLink{
    {{"name", Form::kText}, {"busy_us", Form::kNumber}, {"size_bytes", Form::kInteger}}};
constexpr std::array<Key, 7> kCoverage{{{"lowered_ops", Form::kInteger},
                                        {"estimated_ops", Form::kInteger},
                                        {"lowered_ops_share", Form::kNumber},
                                        {"lowered_flops_share", Form::kNumber},
                                        {"lowered_flops", Form::kNumber},
                                        {"estimated_flops", Form::kNumber},
                                        {"estimated", Form::kList}}};
constexpr std::array<Key, 5> kMemory{{{"rank", Form::kInteger},
                                      {"at_peak", Form::kMap},
                                      {"peak_bytes", Form::kInteger},
                                      {"capacity_bytes", Form::kInteger},
                                      {"peak_phase", Form::kText}}};
constexpr std::array<Key, 6> kAtPeak{{{"parameter_bytes", Form::kInteger},
                                      {"gradient_bytes", Form::kInteger},
                                      {"optimizer_state_bytes", Form::kInteger},
                                      {"activation_bytes", Form::kInteger},
                                      {"temporary_bytes", Form::kInteger},
                                      {"input_bytes", Form::kInteger}}};
constexpr std::array<Key, 4> kPortability{{{"on_device", Form::kText},
                                           {"operator", Form::kText},
                                           {"dtype", Form::kText},
                                           {"count", Form::kInteger}}};
constexpr std::array<Key, 2> kAttribution{{{"rank", Form::kInteger}, {"rows", Form::kList}}};
constexpr std::array<Key, 2> kMachine{{{"hardware", Form::kMap}, {"slow", Form::kList}}};
constexpr std::array<Key, 2> kCommunication{{{"rank", Form::kInteger}, {"rows", Form::kList}}};
constexpr std::array<Key, 4> kAxis{{{"axis", Form::kText},
                                    {"count", Form::kInteger},
                                    {"transfer_ps", Form::kInteger},
                                    {"exposed_ps", Form::kInteger}}};
constexpr std::array<Key, 6> kRow{{{"phase", Form::kText},
                                   {"component", Form::kText},
                                   {"operator", Form::kText},
                                   {"kind", Form::kText},
                                   {"time_ps", Form::kInteger},
                                   {"count", Form::kInteger}}};

/// All values of a map whose keys are not known beforehand.
void check_integers(const json& map, const char* suffix, const std::string& where,
                    Problems& problems) {
  for (const auto& [key, value] : map.items()) {
    if (key.ends_with(suffix))
      (void)check_value(value, Form::kInteger, where + "." + key, problems);
  }
}

void check_breakdown(const json& rows, const std::string& where, Problems& problems) {
  if (rows.empty()) problems.add(where, "expected a row for each rank, got none");
  check_forms(rows, kBreakdown, where, problems);
  for (const json& row : rows) {
    if (!row.is_object()) continue;
    check_integers(row, "_ps", where, problems);
    check_integers(row, "represents", where, problems);
  }
}

void check_other_ranks(const json& attribution, const std::string& where, Problems& problems) {
  if (!attribution.contains("other_ranks")) return;  // older reports
  if (!attribution.at("other_ranks").is_array()) return problems.add(where, "expected a list");
  for (const json& other : attribution.at("other_ranks")) {
    if (check_form(other, kAttribution, where, problems))
      check_forms(other.at("rows"), kRow, where + ".rows", problems);
  }
}

void check_machine(const json& machine, const std::string& where, Problems& problems) {
  if (!check_form(machine, kMachine, where, problems)) return;
  for (const auto& [key, value] : machine.at("hardware").items()) {
    if (!value.is_string())
      problems.add(where + ".hardware." + key,
                   std::string("expected a text, got ") + value.type_name());
  }
  for (const json& part : machine.at("slow")) {
    if (!part.is_string() || part.get<std::string>().find('=') == std::string::npos)
      problems.add(where + ".slow", "expected texts such as core:3=1.5, got " + part.dump());
  }
}

void check_step(const json& step, const std::string& where, Problems& problems) {
  if (!check_form(step, kStep, where, problems)) return;
  check_breakdown(step.at("breakdown"), where + ".breakdown", problems);
  check_forms(step.at("programs"), kProgram, where + ".programs", problems);
  check_forms(step.at("links"), kLink, where + ".links", problems);
  if (check_form(step.at("coverage"), kCoverage, where + ".coverage", problems)) {
    for (const json& name : step.at("coverage").at("estimated")) {
      if (!name.is_string())
        problems.add(where + ".coverage.estimated",
                     std::string("expected names of operators, got ") + name.type_name());
    }
  }
  if (step.contains("attribution") &&
      check_form(step.at("attribution"), kAttribution, where + ".attribution", problems)) {
    check_forms(step.at("attribution").at("rows"), kRow, where + ".attribution.rows", problems);
    check_other_ranks(step.at("attribution"), where + ".attribution.other_ranks", problems);
  }
  if (step.contains("communication") &&
      check_form(step.at("communication"), kCommunication, where + ".communication", problems)) {
    check_forms(step.at("communication").at("rows"), kAxis, where + ".communication.rows",
                problems);
  }
}

void check_validity(const json& validity, const std::string& where, Problems& problems) {
  if (!check_form(validity, kValidity, where, problems)) return;
  for (const json& reason : validity.at("reasons")) {
    if (!reason.is_string())
      problems.add(where + ".reasons", std::string("expected texts, got ") + reason.type_name());
  }
  const auto factor = validity.find("factor");
  if (factor != validity.end() && !(factor->is_number() && factor->get<double>() >= 1))
    problems.add(where + ".factor", "expected a number of at least 1, got " + factor->dump());
}

void check_memory(const json& memory, const std::string& where, Problems& problems) {
  if (!memory.is_object() || !memory.contains("ranks") || !memory.at("ranks").is_array() ||
      memory.at("ranks").empty()) {
    return problems.add(where, "expected a list with a row for each rank");
  }
  check_forms(memory.at("ranks"), kMemory, where, problems);
  for (const json& row : memory.at("ranks")) {
    if (!row.is_object()) continue;
    check_integers(row, "_bytes", where, problems);
    if (!row.contains("at_peak") ||
        !check_form(row.at("at_peak"), kAtPeak, where + ".at_peak", problems))
      continue;
    check_integers(row.at("at_peak"), "", where + ".at_peak", problems);
  }
}

void flatten(const YamlMap& map, const std::string& prefix, Settings& settings) {
  for (const std::string& key : map.keys()) {
    if (map.is_map(key)) {
      flatten(map.map(key), prefix + key + ".", settings);
    } else {
      settings.emplace_back(prefix + key, map.flow_text(key));
    }
  }
}

}  // namespace

json read_json(const std::filesystem::path& file, const std::string& expected) {
  if (const std::string why = why_no_input_file(file); !why.empty())
    throw ConfigError(terminal_line(file.string()) + ": no such " + expected + " (" + why + ")");
  return parse_json(read_input_file(file), file.string(), expected + ": is the file cut off?");
}

void check_run_report(const json& report, const std::string& where) {
  const std::string schema =
      report.is_object() && report.contains("schema") && report.at("schema").is_string()
          ? report.at("schema").get<std::string>()
          : "";
  if (schema != "trellis.run_report/1") {
    throw ConfigError(where +
                      ": not a run report that this version reads: expected schema "
                      "\"trellis.run_report/1\", got " +
                      (schema.empty() ? "none" : "\"" + terminal_line(schema) + "\"") +
                      "; make the run again with this version of trellis");
  }
  Problems problems;
  check_form(report, kReport, where, problems);
  if (report.contains("first_loss") || report.contains("last_loss"))
    check_form(report, kLosses, where, problems);
  if (report.contains("simulated")) {
    check_form(report, kRates, where, problems);
    check_step(report.at("simulated"), where + ".simulated", problems);
  }
  if (report.contains("measured")) {
    check_form(report, kMeasuredRates, where, problems);
    check_measured(report.at("measured"), where + ".measured", problems);
  }
  if (report.contains("machine")) check_machine(report.at("machine"), where + ".machine", problems);
  if (report.contains("validity"))
    check_validity(report.at("validity"), where + ".validity", problems);
  if (report.contains("calibrated") &&
      check_form(report.at("calibrated"), kCalibrated, where + ".calibrated", problems)) {
    check_form(report.at("calibrated").at("factors"), kFactors, where + ".calibrated.factors",
               problems);
    check_validity(report.at("calibrated").at("validity"), where + ".calibrated.validity",
                   problems);
  }
  if (report.contains("memory"))
    check_memory(report.at("memory"), where + ".memory.ranks", problems);
  if (report.contains("portability")) {
    const json& rows = report.at("portability");
    rows.is_array() ? check_forms(rows, kPortability, where + ".portability", problems)
                    : problems.add(where + ".portability", "expected a list");
  }
  problems.throw_if_any();
}

ReportFile read_report_file(const std::filesystem::path& run) {
  ReportFile file;
  std::error_code ignored;
  file.path = std::filesystem::is_directory(run, ignored) ? run / "report.json" : run;
  file.report = read_json(file.path, "report; expected a run's folder or its report.json");
  check_run_report(file.report, file.path.string());
  const std::filesystem::path hparams = file.path.parent_path() / "hparams.yaml";
  if (std::filesystem::exists(hparams, ignored)) {
    const YamlDocument document = YamlDocument::load(hparams);
    flatten(document.root(), "", file.settings);
    document.problems().throw_if_any();
  }
  return file;
}

}  // namespace trellis::analysis
