#include "traces/report/perf_gate.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/escape.h"
#include "base/number_text.h"
#include "traces/report/measured_step.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {

namespace {

using nlohmann::json;
using Align = TextTable::Align;

constexpr std::int64_t kWhole = 1'000'000;

/// The report's own words for the same, for runs whose hparams.yaml is not available.
constexpr std::array<const char*, 11> kFacts{"instance",
                                             "nodes",
                                             "device",
                                             "world_size",
                                             "tensor_model_parallel_size",
                                             "pipeline_model_parallel_size",
                                             "data_parallel_size",
                                             "num_microbatches",
                                             "tokens_per_step",
                                             "parameters",
                                             "precision"};

Settings configuration_of(const ReportFile& run) {
  Settings settings;
  for (const char* fact : kFacts)
    settings.emplace_back(fact, run.report.value(fact, json(nullptr)).dump());
  settings.emplace_back("evidence", run.report.contains("simulated")
                                        ? run.report.at("simulated").at("evidence").dump()
                                        : "\"measured\"");
  for (const auto& [key, value] : run.settings) {
    if (decides_the_step(key)) settings.emplace_back(key, value);
  }
  return settings;
}

std::int64_t fullest_bytes(const json& report, const char* key) {
  std::int64_t most = 0;
  if (!report.contains("memory")) return most;
  for (const json& rank : report.at("memory").at("ranks"))
    most = std::max(most, rank.value(key, std::int64_t{0}));
  return most;
}

void refuse_other_configuration(const ReportFile& baseline, const ReportFile& run) {
  const Settings before = configuration_of(baseline), after_list = configuration_of(run);
  const std::map<std::string, std::string> after(after_list.begin(), after_list.end());
  // With settings on one side only, the report's own facts are compared.
  const bool facts_only = baseline.settings.empty() || run.settings.empty();
  Problems problems;
  for (const auto& [key, value] : before) {
    const bool fact =
        key == "evidence" || std::find(kFacts.begin(), kFacts.end(), key) != kFacts.end();
    if (facts_only && !fact) continue;
    const auto found = after.find(key);
    const std::string got = found == after.end() ? "nothing" : found->second;
    if (got != value)
      problems.add(run.path.string() + ": " + key, "baseline " + baseline.path.string() +
                                                       " is of " + value + ", the run of " + got);
  }
  if (problems.empty()) return;
  std::string text;
  for (const std::string& line : problems.lines()) text += line + "\n";
  throw ConfigError(text +
                    "The gate compares runs of one configuration: run the baseline's, accept this "
                    "one with --update-baseline, or compare all the same with "
                    "--allow-config-change, which says what the change costs");
}

TextTable metrics_table(const GateResult& result) {
  TextTable table({{"", Align::kLeft},
                   {"baseline"},
                   {"run"},
                   {"change"},
                   {"change"},
                   {"limit"},
                   {"", Align::kLeft}});
  for (const GateMetric& m : result.metrics) {
    const bool time = m.unit == "ps";
    table.add({m.name, time ? milliseconds_text(m.before) : human_bytes(m.before),
               time ? milliseconds_text(m.after) : human_bytes(m.after),
               time ? change_in_ms(m.after - m.before) : change_in_bytes(m.after - m.before),
               change_in_percent(m.before, m.after), "+" + m.limit.text(),
               m.passed() ? m.improved() ? "better" : "ok" : "TOO MUCH"});
  }
  return table;
}

/// Where most of what is past a limit is, in a sentence; "" when nothing is.
std::string largest_part(const GateResult& result) {
  for (const GateMetric& m : result.metrics) {
    if (m.passed()) continue;
    if (m.unit == "ps") return first_cause(result.diff);
    const auto cause = std::find_if(
        result.diff.memory.rows.begin(), result.diff.memory.rows.end(),
        [](const DiffRow& row) { return row.change() > 0 && !row.name.starts_with("peak "); });
    if (cause == result.diff.memory.rows.end())
      return "No category of memory grew: the peak moved to another moment, " +
             result.diff.memory_place_after;
    return fmt::format("Largest part of the growth: {} {} ({} → {}) at {}", cause->name,
                       change_in_bytes(cause->change()), human_bytes(cause->before),
                       human_bytes(cause->after), result.diff.memory_place_after);
  }
  return result.improved() ? "Better than the baseline by more than the limit: keep the gain with "
                             "--update-baseline"
                           : "";
}

/// The causes of a result, the root first; none when there is nothing to say.
std::vector<std::string> reasons(const GateResult& result) {
  std::vector<std::string> lines = root_causes(result.diff);
  if (std::string part = largest_part(result); !part.empty()) lines.push_back(std::move(part));
  return lines;
}

std::string reason(const GateResult& result) {
  return fmt::format("{}", fmt::join(reasons(result), "\n"));
}

}  // namespace

bool Limit::passed(std::int64_t before, std::int64_t after) const {
  return static_cast<__int128>(after - before) * kWhole <=
         static_cast<__int128>(before) * millionths;
}

std::string Limit::text() const {
  std::string digits = fmt::format("{}.{:04}", millionths / 10'000, millionths % 10'000);
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.ends_with('.')) digits.pop_back();
  return digits + " %";
}

Limit parse_limit(const std::string& option, const std::string& text) {
  const auto fail = [&]() -> Limit {
    throw ConfigError(option + " \"" + text +
                      "\": expected a share of at least 0 with its sign and at most four decimals, "
                      "e.g. 2%, 0.5% or 0%");
  };
  std::string digits = text;
  if (!digits.ends_with('%')) return fail();
  digits.pop_back();
  while (digits.ends_with(' ')) digits.pop_back();
  const std::size_t dot = std::min(digits.find('.'), digits.size());
  std::string whole = digits.substr(0, dot),
              decimals = dot < digits.size() ? digits.substr(dot + 1) : "";
  if (whole.empty() || decimals.size() > 4 || whole.size() > 6 ||
      (dot < digits.size() && decimals.empty()))
    return fail();
  decimals.resize(4, '0');
  whole += decimals;
  Limit limit;
  const auto [end, error] =
      std::from_chars(whole.data(), whole.data() + whole.size(), limit.millionths);
  if (error != std::errc() || end != whole.data() + whole.size() || limit.millionths < 0)
    return fail();
  return limit;
}

json make_baseline(const ReportFile& run) {
  static_cast<void>(timed_step(run.report, run.path.string()));
  if (run.report.at("interrupted").get<bool>())
    throw ConfigError(run.path.string() +
                      ": the run was interrupted: expected a run that ended by itself");
  json report = run.report;
  for (const char* of_the_host : {"host", "portability", "first_loss", "last_loss", "test_loss"})
    report.erase(of_the_host);
  json settings = json::object();
  for (const auto& [key, value] : run.settings) {
    if (decides_the_step(key)) settings[key] = value;
  }
  return {{"schema", "trellis.gate_baseline/1"},
          {"settings", std::move(settings)},
          {"report", std::move(report)}};
}

ReportFile read_baseline(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) {
    throw ConfigError("--baseline " + file.string() +
                      ": no such file; make it from a run that is good: trellis gate --baseline " +
                      file.string() + " RUN --update-baseline");
  }
  const json document = read_json(file, "baseline of trellis gate");
  const std::string schema =
      document.is_object() ? document.value("schema", json("none")).dump() : "no map";
  if (schema != "\"trellis.gate_baseline/1\"" || !document.contains("report") ||
      !document.contains("settings") || !document.at("settings").is_object()) {
    throw ConfigError(
        "--baseline " + file.string() +
        ": expected schema \"trellis.gate_baseline/1\" with a report and its settings, got " +
        schema + "; make it again with --update-baseline");
  }
  ReportFile baseline;
  baseline.path = file;
  baseline.report = document.at("report");
  check_run_report(baseline.report, file.string() + ": report");
  if (!baseline.report.contains("simulated") && !baseline.report.contains("measured"))
    throw ConfigError("--baseline " + file.string() +
                      ": report.simulated: missing: expected a simulated or a measured step; make "
                      "it again with --update-baseline");
  for (const auto& [key, value] : document.at("settings").items())
    baseline.settings.emplace_back(key,
                                   value.is_string() ? value.get<std::string>() : value.dump());
  return baseline;
}

bool GateResult::passed() const {
  return std::all_of(metrics.begin(), metrics.end(),
                     [](const GateMetric& m) { return m.passed(); });
}

bool GateResult::improved() const {
  return passed() && std::any_of(metrics.begin(), metrics.end(),
                                 [](const GateMetric& m) { return m.improved(); });
}

namespace {

bool counts_memory(const json& report) {
  const json& ranks = report.at("measured").at("ranks");
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const json& rank) { return rank.contains("memory"); });
}

/// A device that counts no memory has no limit of it; one report alone cannot be judged by it.
void add_measured_memory(GateResult& result, const ReportFile& baseline, const ReportFile& run,
                         const GateLimits& limits) {
  const bool before = counts_memory(baseline.report), after = counts_memory(run.report);
  if (before != after) {
    const ReportFile& without = before ? run : baseline;
    throw ConfigError(without.path.string() +
                      ": measured.ranks: expected the memory that the device counted, as in " +
                      (before ? baseline : run).path.string() +
                      ", got none: the limit of memory needs both; measure on a device that counts "
                      "it, or make the baseline again with --update-baseline");
  }
  for (const DiffRow& row : result.diff.memory.rows)
    result.metrics.push_back(
        {"peak memory allocated", "bytes", row.before, row.after, limits.memory});
}

}  // namespace

GateResult judge(const ReportFile& baseline, const ReportFile& run, const GateLimits& limits,
                 bool allow_config_change) {
  static_cast<void>(make_baseline(run));  // refuses what could be no baseline either
  if (!allow_config_change) refuse_other_configuration(baseline, run);
  GateResult result;
  result.baseline = baseline.path.string();
  result.run = run.path.string();
  ReportFile comparable = run;  // a baseline holds no other settings
  std::erase_if(comparable.settings,
                [](const auto& setting) { return !decides_the_step(setting.first); });
  result.diff = diff_runs(baseline, comparable);
  result.metrics.push_back(
      {"step time", "ps", result.diff.step_before_ps, result.diff.step_after_ps, limits.step_time});
  if (run.report.contains("measured")) {
    add_measured_memory(result, baseline, run, limits);
    return result;
  }
  for (const auto& [name, key] : {std::pair{"peak memory allocated", "peak_bytes"},
                                  std::pair{"peak memory reserved", "peak_reserved_bytes"}}) {
    result.metrics.push_back({name, "bytes", fullest_bytes(baseline.report, key),
                              fullest_bytes(run.report, key), limits.memory});
  }
  return result;
}

json to_json(const GateResult& result) {
  json metrics = json::array();
  for (const GateMetric& m : result.metrics) {
    metrics.push_back({{"name", m.name},
                       {"unit", m.unit},
                       {"before", m.before},
                       {"after", m.after},
                       {"limit_millionths", m.limit.millionths},
                       {"passed", m.passed()}});
  }
  return {{"schema", "trellis.gate/1"},
          {"baseline", result.baseline},
          {"run", result.run},
          {"passed", result.passed()},
          {"improved", result.improved()},
          {"root_causes", root_causes(result.diff)},
          {"reason", reason(result)},
          {"metrics", std::move(metrics)},
          {"diff", to_json(result.diff)}};
}

std::vector<GateCheck> gate_checks(const GateResult& result) {
  std::vector<GateCheck> checks;
  for (const GateMetric& m : result.metrics) {
    GateCheck check{m.name, std::nullopt};
    if (!m.passed()) {
      const auto shown = [&](std::int64_t value) {
        return m.unit == "ps" ? milliseconds_text(value) : human_bytes(value);
      };
      const std::string expected =
                            fmt::format("at most {} above {}", m.limit.text(), shown(m.before)),
                        got = fmt::format("{} ({})", shown(m.after),
                                          change_in_percent(m.before, m.after));
      check.problem = Problem{result.baseline,
                              0,
                              m.name,
                              expected,
                              got,
                              fmt::format("{}: {}: expected {}, got {}\n{}", result.run, m.name,
                                          expected, got, reason(result))};
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

std::string gate_text(const GateResult& result) {
  std::string text = result.passed() ? "Gate passed\n" : "Gate FAILED\n";
  text += metrics_table(result).text();
  for (const std::string& why : reasons(result)) text += terminal_line(why) + "\n";
  if (result.passed() && root_causes(result.diff).empty()) return text;
  const std::string tables = diff_tables_text(result.diff, 10);
  return text + (tables.starts_with('\n') ? "" : "\n") + tables;
}

std::string gate_markdown(const GateResult& result) {
  std::string text = fmt::format("### {} step: gate {}\n\n",
                                 result.diff.simulated_after ? "Simulated" : "Measured",
                                 result.passed() ? "passed" : "FAILED");
  text += metrics_table(result).markdown();
  for (const std::string& why : reasons(result)) text += "\n" + markdown_text(why) + "\n";
  return text + "\n<details><summary>What changed</summary>\n" +
         diff_tables_markdown(result.diff, 10) + "\n</details>\n";
}

}  // namespace trellis::analysis
