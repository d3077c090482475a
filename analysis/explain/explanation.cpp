#include "analysis/explain/explanation.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "analysis/explain/page_file.h"
#include "traces/report/report_page.h"
#include "traces/report/step_parts.h"
#include "traces/report/step_view.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using Align = TextTable::Align;

/// The constants that change the step at all, or with which a step is refused.
std::vector<const Sensitivity*> that_matter(const Explanation& explanation) {
  std::vector<const Sensitivity*> all;
  for (const Sensitivity& each : explanation.sensitivity.constants) {
    const bool refused = !each.least.step_ps || !each.most.step_ps;
    if (refused || each.swing_ps(explanation.sensitivity.step_ps) > 0) all.push_back(&each);
  }
  return all;
}

json end_json(const EndOfRange& end, std::int64_t step_ps) {
  json out = {{"value", end.value}, {"step_time_ps", nullptr}, {"change", nullptr}};
  if (end.step_ps) {
    out["step_time_ps"] = *end.step_ps;
    out["change"] = static_cast<double>(*end.step_ps - step_ps) / static_cast<double>(step_ps);
  }
  if (!end.problem.empty()) out["problem"] = end.problem;
  return out;
}

json constant_json(const Sensitivity& each, std::int64_t step_ps) {
  const sim::Parameter& parameter = each.constant.parameter;
  return {{"key", parameter.key},
          {"value", parameter.value},
          {"range", parameter.range},
          {"evidence", sim::name(parameter.evidence)},
          {"source", parameter.source},
          {"least", end_json(each.least, step_ps)},
          {"most", end_json(each.most, step_ps)},
          {"swing_ps", each.swing_ps(step_ps)},
          {"measurement", each.constant.measurement}};
}

json row_json(const Neighbour& row) {
  json differs = json::array();
  for (const auto& [what, much] : row.distance.parts)
    differs.push_back({{"what", what}, {"distance", much}});
  json out = {{"id", row.id},
              {"source", row.source},
              {"release", row.release.empty() ? json() : json(row.release)},
              {"instance", row.place.instance},
              {"nodes", row.place.nodes},
              {"software", row.place.software},
              {"parameters", row.place.parameters},
              {"sequence_length", row.place.sequence_length},
              {"tp", row.place.tp},
              {"pp", row.place.pp},
              {"dp", row.place.dp},
              {"distance", row.distance.total},
              {"differs", differs},
              {"published_s", row.published_s},
              {"predicted_s", nullptr},
              {"error", nullptr}};
  if (row.predicted_s) {
    out["predicted_s"] = *row.predicted_s;
    out["error"] = *row.predicted_s / row.published_s - 1;
  }
  if (row.micro_batch) {
    const auto& [published, predicted] = *row.micro_batch;
    out["micro_batch"] = {{"published_device_s", published.device},
                          {"published_idle_s", published.idle},
                          {"predicted_device_s", predicted.device},
                          {"predicted_idle_s", predicted.idle}};
  }
  return out;
}

/// Parts of the step with what judges each.
struct JudgedPart {
  std::string title;
  std::int64_t ps = 0;
  const PartAccuracy* accuracy = nullptr;
};

std::vector<JudgedPart> judged_parts(const Explanation& explanation) {
  const json report = json::parse(explanation.sensitivity.report);
  const StepView view = view_step(report.at("simulated"));
  std::vector<JudgedPart> parts;
  for (const NamedTime& part : view.parts) {
    if (part.ps == 0) continue;
    JudgedPart judged{part.name, part.ps};
    for (const PartAccuracy& accuracy : explanation.parts) {
      const auto key = std::find_if(kStepParts.begin(), kStepParts.end(),
                                    [&](const auto& each) { return accuracy.part == each.first; });
      if (key != kStepParts.end() && part.name == key->second) judged.accuracy = &accuracy;
    }
    parts.push_back(judged);
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const JudgedPart& a, const JudgedPart& b) { return a.ps > b.ps; });
  return parts;
}

std::string percent(double share) { return significant(100 * share, 3) + " %"; }
std::string signed_percent(double share) { return (share > 0 ? "+" : "") + percent(share); }

std::string change_text(const EndOfRange& end, std::int64_t step_ps) {
  if (!end.step_ps) return "refused";
  return signed_percent(static_cast<double>(*end.step_ps - step_ps) / static_cast<double>(step_ps));
}

/// Where the factor of the range comes from.
std::string factor_text(const Validity& validity) {
  if (validity.factor <= 0) return validity.basis;
  std::string text = fmt::format("factor {:.3f}", validity.factor);
  if (validity.steps_beyond > 0) {
    text += fmt::format(
        " = {:.3f} × {:.1f}^{:.2f} ({:.2f} doublings and properties beyond the "
        "measured steps)",
        validity.measured_factor, kWiderPerStep, validity.steps_beyond, validity.steps_beyond);
  }
  return text + "\n  " + validity.basis;
}

/// The run after which the answer is no longer exploratory.
std::string validation_of(const Explanation& e) {
  return fmt::format(
      "the step itself: `trellis export {}` writes the configuration for the software that runs "
      "it; "
      "40 steps on {} × {}, the mean of the last 20 into a file of measurements for `trellis "
      "calibrate`",
      e.run.config, e.nodes, e.instance);
}

std::string head_text(const Explanation& e) {
  const double ms = static_cast<double>(e.sensitivity.step_ps) * 1e-9;
  std::string text = fmt::format("explain {}: step {} on {} × {}\n", e.name,
                                 milliseconds_text(e.sensitivity.step_ps), e.nodes, e.instance);
  if (e.validity.factor > 0)
    text += fmt::format("Range {} to {} ms: ", short_number(ms / e.validity.factor),
                        short_number(ms * e.validity.factor));
  text += factor_text(e.validity) + "\n";
  if (!e.validity.exploratory()) return text;
  return text + fmt::format("exploratory: {}\n  measured to validate it: {}\n",
                            fmt::join(e.validity.reasons, "; "), validation_of(e));
}

std::string rows_text(const Explanation& e) {
  if (e.neighbours.empty()) return "";
  TextTable table({{"row", Align::kLeft},
                   {"distance"},
                   {"published"},
                   {"predicted"},
                   {"error"},
                   {"device"},
                   {"differs in", Align::kLeft}});
  for (const Neighbour& row : e.neighbours) {
    std::string differs;
    for (const auto& [what, much] : row.distance.parts)
      differs += (differs.empty() ? "" : ", ") + what + " " + significant(much, 2);
    table.add(
        {row.id, significant(row.distance.total, 3), significant(row.published_s) + " s",
         row.predicted_s ? significant(*row.predicted_s) + " s" : "-",
         row.predicted_s ? signed_percent(*row.predicted_s / row.published_s - 1) : "-",
         row.micro_batch
             ? signed_percent(row.micro_batch->second.device / row.micro_batch->first.device - 1)
             : "-",
         differs.empty() ? "nothing" : differs});
  }
  return "\nNearest published steps (device: error of a micro-batch's busy time, where telemetry "
         "is "
         "published).\nDistance: 1 a doubling of parameters, sequence length, nodes, TP, PP, CP, "
         "DP; 1 each for other software,\ngeneration, instance, experts, LoRA; 0.1 a release\n" +
         table.text();
}

std::string parts_text(const Explanation& e) {
  TextTable table({{"part", Align::kLeft},
                   {"time"},
                   {"share"},
                   {"judged by", Align::kLeft},
                   {"rows"},
                   {"median error"},
                   {"nine of ten"}});
  for (const JudgedPart& part : judged_parts(e)) {
    const PartAccuracy* a = part.accuracy;
    table.add({part.title, milliseconds_text(part.ps),
               share_text(static_cast<double>(part.ps), static_cast<double>(e.sensitivity.step_ps)),
               a ? "accuracy " + a->subject : "no published row", a ? std::to_string(a->rows) : "-",
               a ? percent(a->median_error) : "-", a ? percent(a->p90_error) : "-"});
  }
  return "\nParts of the step, and how far predictions of such parts are from published ones\n" +
         table.text();
}

std::string constants_text(const Explanation& e) {
  const std::vector<const Sensitivity*> all = that_matter(e);
  TextTable table({{"constant", Align::kLeft},
                   {"value"},
                   {"range", Align::kLeft},
                   {"evidence", Align::kLeft},
                   {"at least"},
                   {"at most"}});
  for (std::size_t i = 0; i < std::min(all.size(), e.most_constants); ++i) {
    const sim::Parameter& parameter = all[i]->constant.parameter;
    table.add({parameter.key, parameter.value, parameter.range,
               std::string(sim::name(parameter.evidence)),
               change_text(all[i]->least, e.sensitivity.step_ps),
               change_text(all[i]->most, e.sensitivity.step_ps)});
  }
  std::string text = fmt::format(
      "\nConstants that are known to a range only: {} of {} change this step; the step at both "
      "ends "
      "of their ranges\n",
      all.size(), e.sensitivity.constants.size());
  text += table.text();
  for (std::size_t i = 0; i < std::min(all.size(), e.most_constants); ++i) {
    for (const EndOfRange* end : {&all[i]->least, &all[i]->most}) {
      if (!end->step_ps)
        text += fmt::format("  refused: {}={}: {}\n", all[i]->constant.parameter.key, end->value,
                            end->problem);
    }
  }
  if (all.size() > e.most_constants)
    text += fmt::format(
        "  and {} more, the next changes it by {}\n", all.size() - e.most_constants,
        share_text(static_cast<double>(all[e.most_constants]->swing_ps(e.sensitivity.step_ps)),
                   static_cast<double>(e.sensitivity.step_ps)));
  return text;
}

std::string measurements_text(const Explanation& e) {
  std::vector<std::pair<std::string, std::vector<std::string>>> measurements;
  const std::vector<const Sensitivity*> all = that_matter(e);
  for (std::size_t i = 0; i < std::min(all.size(), e.most_constants); ++i) {
    const std::string& what = all[i]->constant.measurement;
    auto found = std::find_if(measurements.begin(), measurements.end(),
                              [&](const auto& each) { return each.first == what; });
    if (found == measurements.end()) found = measurements.insert(measurements.end(), {what, {}});
    found->second.push_back(all[i]->constant.parameter.key);
  }
  if (measurements.empty()) return "";
  std::string text = "\nWhat to measure on one rented instance, that of the largest effect first\n";
  for (std::size_t i = 0; i < measurements.size(); ++i)
    text += fmt::format("  {}. {}\n     for {}\n", i + 1, measurements[i].first,
                        fmt::join(measurements[i].second, ", "));
  return text + fmt::format("  What was measured: `trellis simulate {}{} --set KEY=VALUE`\n",
                            e.run.config, e.run.machine);
}

}  // namespace

json explain_json(const Explanation& e) {
  json constants = json::array(), rows = json::array(), parts = json::array();
  for (const Sensitivity& each : e.sensitivity.constants)
    constants.push_back(constant_json(each, e.sensitivity.step_ps));
  for (const Neighbour& row : e.neighbours) rows.push_back(row_json(row));
  for (const JudgedPart& part : judged_parts(e)) {
    parts.push_back({{"part", part.title}, {"time_ps", part.ps}, {"accuracy", nullptr}});
    if (const PartAccuracy* a = part.accuracy)
      parts.back()["accuracy"] = {{"subject", a->subject},
                                  {"rows", a->rows},
                                  {"median_error", a->median_error},
                                  {"p90_error", a->p90_error},
                                  {"worst_error", a->worst_error}};
  }
  json validity = to_json(e.validity, step_milliseconds(e.sensitivity.step_ps));
  validity["measured_factor"] = e.validity.measured_factor;
  validity["steps_beyond"] = e.validity.steps_beyond;
  validity["wider_per_step"] = kWiderPerStep;
  validity["measurement"] = e.validity.exploratory() ? json(validation_of(e)) : json();
  return {{"schema", "trellis.explain/1"},
          {"name", e.name},
          {"instance", e.instance},
          {"nodes", e.nodes},
          {"step_time_ps", e.sensitivity.step_ps},
          {"validity", validity},
          {"nearest_rows", rows},
          {"parts", parts},
          {"constants", constants}};
}

std::string explain_text(const Explanation& explanation) {
  return head_text(explanation) + rows_text(explanation) + parts_text(explanation) +
         constants_text(explanation) + measurements_text(explanation);
}

std::string explain_page(const Explanation& explanation) {
  json document = {{"explain", explain_json(explanation)},
                   {"most_constants", explanation.most_constants}};
  return html_page(document, kExplainScript);
}

}  // namespace trellis::analysis
