#include "traces/report/run_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/number_text.h"
#include "sim/config/model_version.h"
#include "traces/report/checkpoint_report.h"
#include "traces/report/measured_step.h"
#include "traces/report/step_parts.h"
#include "traces/report/text_table.h"
#include "traces/report/unused_cores.h"

namespace trellis::analysis {

namespace {

using nlohmann::json;
using Align = TextTable::Align;

constexpr std::array<const char*, 6> kCategories{"parameter",  "gradient",  "optimizer_state",
                                                 "activation", "temporary", "input"};
/// Ranks of a class that are listed one by one.
constexpr std::size_t kMostListed = 6;

constexpr const char* kDataNote =
    "  data: inputs on their way from the host's memory; what reading and tokenising them takes is "
    "not in simulated time\n";

double milliseconds(const json& ps) { return static_cast<double>(ps.get<std::int64_t>()) * 1e-9; }

/// "0-3", "0-30/2" (every second), "0,3,4"; of many without a rule the first ones.
std::string rank_list(const std::vector<std::int64_t>& ranks) {
  if (ranks.size() > 2) {
    const std::int64_t step = ranks[1] - ranks[0];
    bool regular = true;
    for (std::size_t i = 1; i < ranks.size(); ++i) regular &= ranks[i] - ranks[i - 1] == step;
    if (regular)
      return fmt::format("{}-{}{}", ranks.front(), ranks.back(),
                         step == 1 ? "" : fmt::format("/{}", step));
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostListed); ++i)
    text += (i == 0 ? "" : ",") + std::to_string(ranks[i]);
  return text + (ranks.size() > kMostListed ? ",…" : "");
}

/// Rows of ranks with the same cells are one class, shown once with its ranks and their number.
class RankTable {
 public:
  explicit RankTable(std::vector<TextTable::Column> columns) : columns_(std::move(columns)) {}
  void add(const json& rank, std::vector<std::string> cells) {
    auto same = std::find_if(classes_.begin(), classes_.end(),
                             [&](const Class& c) { return c.cells == cells; });
    if (same == classes_.end()) same = classes_.insert(same, Class{{}, 0, std::move(cells)});
    same->ranks.push_back(rank.at("rank").get<std::int64_t>());
    same->count += rank.value("represents", std::int64_t{1});  // older reports: one row per rank
  }
  [[nodiscard]] std::string text() const {
    std::vector<TextTable::Column> columns{{"rank"}, {"ranks"}};
    columns.insert(columns.end(), columns_.begin(), columns_.end());
    TextTable table(std::move(columns));
    for (const Class& c : classes_) {
      std::vector<std::string> cells{rank_list(c.ranks), thousands(c.count)};
      cells.insert(cells.end(), c.cells.begin(), c.cells.end());
      table.add(std::move(cells));
    }
    return table.text();
  }

 private:
  struct Class {
    std::vector<std::int64_t> ranks;  ///< those that ran
    std::int64_t count = 0;           ///< of all that they represent
    std::vector<std::string> cells;
  };
  std::vector<TextTable::Column> columns_;
  std::vector<Class> classes_;
};

std::string print_breakdown(const json& simulated) {
  const json& breakdown = simulated.at("breakdown");
  const auto is_shown = [&](const std::string& key) {  // one instance, or no CP, has no such part
    const auto has = [&](const json& row) { return row.value(key, std::int64_t{0}) != 0; };
    return (key != "multi_node_ps" && key != "exposed_cp_ps" && key != "exposed_ep_ps" &&
            key != "host_ps") ||
           std::ranges::any_of(breakdown, has);
  };
  std::vector<TextTable::Column> columns;
  for (const auto& [key, title] : kStepParts) {
    if (is_shown(key)) columns.push_back({title});
  }
  columns.push_back({"step"});
  RankTable table(std::move(columns));
  for (const json& row : breakdown) {
    std::vector<std::string> cells;
    for (const auto& [key, title] : kStepParts) {
      if (is_shown(key)) {
        cells.push_back(significant(milliseconds(row.value(key, std::int64_t{0}))));
      }
    }
    cells.push_back(significant(milliseconds(row.at("total_ps"))));
    table.add(row, std::move(cells));
  }
  return fmt::format("Where the simulated step went, ms (evidence: {}); equal ranks are one row\n",
                     simulated.at("evidence").get<std::string>()) +
         table.text();
}

/// The largest rows of the step of the rank that ends last.
std::string print_attribution(const json& simulated) {
  constexpr std::size_t kShown = 10;
  const json& attribution = simulated.at("attribution");
  const json& rows = attribution.at("rows");
  const std::int64_t step = simulated.at("step_time_ps").get<std::int64_t>();
  std::string text = fmt::format("Largest operators of rank {}, the last to end\n",
                                 attribution.at("rank").get<std::int64_t>());
  TextTable table({{"phase", Align::kLeft},
                   {"component", Align::kLeft},
                   {"operator", Align::kLeft},
                   {"kind", Align::kLeft},
                   {"time"},
                   {"share"}});
  const std::size_t shown = std::min(rows.size(), kShown);
  std::int64_t rest = step;
  for (std::size_t r = 0; r < shown; ++r) {
    const std::int64_t time = rows[r].at("time_ps").get<std::int64_t>();
    rest -= time;
    table.add({rows[r].at("phase"), rows[r].at("component"), rows[r].at("operator"),
               rows[r].at("kind"), milliseconds_text(time),
               share_text(static_cast<double>(time), static_cast<double>(step))});
  }
  text += table.text();
  if (rows.size() > shown)
    text += fmt::format("  and {} more, {}\n", rows.size() - shown, milliseconds_text(rest));
  return text;
}

std::string print_memory(const json& memory) {
  std::vector<TextTable::Column> columns;
  for (const char* category : kCategories) columns.push_back({category});
  for (const char* title : {"allocated", "reserved", "capacity"}) columns.push_back({title});
  columns.push_back({"phase", Align::kLeft});
  RankTable table(std::move(columns));
  const auto mib = [](const json& bytes) {
    return significant(static_cast<double>(bytes.get<std::int64_t>()) / (1 << 20));
  };
  for (const json& row : memory.at("ranks")) {
    std::vector<std::string> cells;
    for (const char* category : kCategories)
      cells.push_back(mib(row.at("at_peak").at(std::string(category) + "_bytes")));
    cells.push_back(mib(row.at("peak_bytes")));
    cells.push_back(mib(row.contains("peak_reserved_bytes")
                            ? row.at("peak_reserved_bytes")
                            : row.at("peak_bytes")));  // older reports
    cells.push_back(mib(row.at("capacity_bytes")));
    cells.push_back(row.at("peak_phase").get<std::string>());
    table.add(row, std::move(cells));
  }
  std::string text = "Device memory at its peak, MiB; equal ranks are one row\n" + table.text();
  if (!memory.contains("software")) return text;
  const json& software = memory.at("software");
  const std::string verdict = software.at("verdict").get<std::string>();
  return text + fmt::format(
                    "  {} on a device, estimated: {} of {} per logical core: {} (trellis memory "
                    "says what of)\n",
                    software.at("software").get<std::string>(),
                    human_bytes(software.at("total_bytes")),
                    human_bytes(software.at("capacity_bytes")),
                    verdict == "does_not_fit" ? "DOES NOT FIT"
                    : verdict == "tight"      ? "fits, tight"
                                              : "fits");
}

std::string print_coverage(const json& coverage) {
  std::string text = fmt::format(
      "Lowered to executable instructions: {:.2f} % of FLOPs, {:.2f} % of ops ({} of {})\n",
      100 * coverage.at("lowered_flops_share").get<double>(),
      100 * coverage.at("lowered_ops_share").get<double>(),
      thousands(coverage.at("lowered_ops").get<std::int64_t>()),
      thousands(coverage.at("lowered_ops").get<std::int64_t>() +
                coverage.at("estimated_ops").get<std::int64_t>()));
  std::string names;
  for (const json& op : coverage.at("estimated"))
    names += (names.empty() ? "" : ", ") + op.get<std::string>();
  if (!names.empty()) text += "  estimated, not lowered: " + names + "\n";
  return text;
}

json lacking_rows(const json& portability) {
  json rows = json::array();
  for (const json& row : portability.at("operators")) {
    if (!row.at("portable").get<bool>()) rows.push_back(row);
  }
  return rows;
}

/// One line per consequence, followed by its operators.
std::string print_portability(const json& rows) {
  if (rows.empty())
    return "Portability: the hardware has every operator and type that this run used\n";
  std::map<std::string, std::vector<std::string>> by_consequence;
  for (const json& row : rows) {
    by_consequence[row.at("on_device").get<std::string>()].push_back(fmt::format(
        "{} {} ×{}", row.at("operator").get<std::string>(), row.at("dtype").get<std::string>(),
        thousands(row.at("count").get<std::int64_t>())));
  }
  constexpr std::size_t kShown = 6;
  std::string text =
      "Portability: what the hardware would do otherwise (all of it: portability.json)\n";
  for (const auto& [consequence, uses] : by_consequence) {
    text += "  " + consequence + ":";
    for (std::size_t i = 0; i < std::min(uses.size(), kShown); ++i)
      text += (i == 0 ? " " : ", ") + uses[i];
    text += uses.size() > kShown ? fmt::format(", and {} more\n", uses.size() - kShown) : "\n";
  }
  return text;
}

}  // namespace

SimulatedRates simulated_rates(const json& step_report, const RunFacts& facts) {
  const auto step_ps = step_report.at("step_time_ps").get<std::int64_t>();
  const double seconds = static_cast<double>(step_ps) * 1e-12;
  SimulatedRates rates;
  rates.step_time_ms = step_milliseconds(step_ps);
  if (seconds > 0) {
    rates.tokens_per_s = static_cast<double>(facts.tokens_per_step) / seconds;
    rates.mfu = facts.model_flops_per_step /
                (seconds * facts.world_size * step_report.at("peak_flops_per_core").get<double>());
  }
  return rates;
}

json run_report(const RunFacts& facts, const json& step_report, const json& memory,
                const json& portability, const json& checkpoints) {
  json report = {{"schema", "trellis.run_report/1"},
                 {"verb", facts.verb},
                 {"name", facts.name},
                 {"device", facts.device},
                 {"world_size", facts.world_size},
                 {"tensor_model_parallel_size", facts.tp},
                 {"pipeline_model_parallel_size", facts.pp},
                 {"data_parallel_size", facts.dp},
                 {"num_microbatches", facts.num_microbatches},
                 {"parameters", facts.parameters},
                 {"tokens_per_step", facts.tokens_per_step},
                 {"model_flops_per_step", facts.model_flops_per_step},
                 {"precision", facts.precision},
                 {"steps", facts.steps},
                 {"max_steps", facts.max_steps},
                 {"interrupted", facts.interrupted}};
  if (!facts.hardware.empty())
    report["machine"] = {
        {"model", sim::kModelVersion}, {"hardware", facts.hardware}, {"slow", facts.slow}};
  if (facts.attempt > 1) report["attempt"] = facts.attempt;
  if (facts.first_loss) report["first_loss"] = *facts.first_loss;
  if (facts.last_loss) report["last_loss"] = *facts.last_loss;
  if (facts.test_loss) report["test_loss"] = *facts.test_loss;
  if (!facts.routing.empty()) report["routing"] = expert_load_json(facts.routing);
  if (!step_report.is_null()) {
    const SimulatedRates rates = simulated_rates(step_report, facts);
    report["instance"] = facts.instance;
    report["nodes"] = facts.nodes;
    report["step_time_ms"] = rates.step_time_ms;
    report["tokens_per_s"] = rates.tokens_per_s;
    report["mfu"] = rates.mfu;
    report["mfu_denominator_flops"] =
        step_report.at("peak_flops_per_core").get<double>() * facts.world_size;
    if (facts.validity) report["validity"] = to_json(*facts.validity, rates.step_time_ms);
    if (facts.calibration)
      report["calibrated"] =
          calibrated_json(*facts.calibration, step_report, facts.place, facts.tokens_per_step);
    report["simulated"] = step_report;
    if (const auto use = core_use(report)) report["unused_core_share"] = use->unused_share();
  }
  if (!memory.is_null()) report["memory"] = memory;
  if (json software =
          memory.is_null() ? json() : software_memory(facts.software, memory.at("ranks"));
      !software.is_null())
    report["memory"]["software"] = std::move(software);
  if (!portability.is_null()) report["portability"] = lacking_rows(portability);
  if (!checkpoints.is_null()) report["checkpoints"] = checkpoints;
  return report;
}

json host_report(const HostFacts& host) {
  json steps = json::array();
  for (const HostFacts::Step& s : host.steps) {
    steps.push_back({{"step", s.step},
                     {"s_per_step", s.seconds},
                     {"data_wait_s", s.data_wait_s},
                     {"sequences_per_s", s.sequences_per_s},
                     {"sequences_per_s_peak", s.sequences_per_s_peak}});
  }
  return {{"schema", "trellis.host/1"},
          {"wall_s", host.wall_s},
          {"data_wait_s", host.data_wait_s},
          {"resident_bytes_before", host.bytes_before},
          {"peak_resident_bytes", host.bytes_peak},
          {"steps", std::move(steps)}};
}

namespace {

/// "core:3=1.5" → "rank 3 takes 1.5 times as long".
std::string slow_part_text(const std::string& part) {
  const std::size_t colon = part.find(':'), equals = part.rfind('=');
  const std::string name = part.substr(colon + 1, equals - colon - 1),
                    how = part.substr(equals + 1);
  if (how == "down") return "link " + name + " is down";
  return (part.starts_with("core") ? "rank " : "link ") + name + " takes " + how + " times as long";
}

/// The cost of slow parts; "": there are none.
std::string slow_parts_text(const json& report) {
  if (!report.at("simulated").contains("without_slow_parts_ps")) return "";
  const auto without = report.at("simulated").at("without_slow_parts_ps").get<std::int64_t>();
  const auto lost = report.at("simulated").at("step_time_ps").get<std::int64_t>() - without;
  std::vector<std::string> parts;
  for (const json& part : report.at("machine").at("slow")) parts.push_back(slow_part_text(part));
  return fmt::format("Slow parts: {}: {} of the step lost, {} without them ({} longer)\n",
                     fmt::join(parts, ", "), milliseconds_text(lost), milliseconds_text(without),
                     share_text(static_cast<double>(lost) / static_cast<double>(without), 1));
}

}  // namespace

std::string print_run_report(const json& raw) {
  if (!raw.is_object() || raw.value("schema", "") != "trellis.run_report/1") {
    throw ConfigError("not a run report: expected schema \"trellis.run_report/1\", got \"" +
                      (raw.is_object() ? raw.value("schema", "none") : std::string("no object")) +
                      "\"");
  }
  const json report = one_line_texts(raw);
  std::string text = fmt::format(
      "{} {}: {} parameters, {} ranks on {} (TP {} × PP {} × DP {}, {} micro-batches), {}\n",
      report.at("verb").get<std::string>(), report.at("name").get<std::string>(),
      thousands(report.at("parameters").get<std::int64_t>()), report.at("world_size").get<int>(),
      report.contains("instance") ? fmt::format("{} × {}", report.at("nodes").get<int>(),
                                                report.at("instance").get<std::string>())
                                  : report.at("device").get<std::string>(),
      report.at("tensor_model_parallel_size").get<int>(),
      report.at("pipeline_model_parallel_size").get<int>(),
      report.at("data_parallel_size").get<int>(), report.at("num_microbatches").get<int>(),
      report.at("precision").get<std::string>());
  if (report.contains("first_loss")) {
    text += fmt::format("Loss {:.4f} → {:.4f} nats/token in {} steps{}\n",
                        report.at("first_loss").get<double>(), report.at("last_loss").get<double>(),
                        report.at("steps").get<std::int64_t>(),
                        report.at("interrupted").get<bool>() ? " (interrupted)" : "");
  }
  if (report.contains("attempt"))
    text += fmt::format("Attempt {}: the run failed before and went on from its checkpoint\n",
                        report.at("attempt").get<int>());
  if (report.contains("routing")) text += print_expert_load(report.at("routing"));
  if (report.contains("simulated")) {
    text += fmt::format(
        "Simulated step {}, {} tokens/s, MFU {} of {:.1f} TFLOPS (bf16 peak of {} cores)\n",
        milliseconds_text(report.at("simulated").at("step_time_ps").get<std::int64_t>()),
        rate_text(report.at("tokens_per_s").get<double>()),
        share_text(report.at("mfu").get<double>(), 1),
        report.at("mfu_denominator_flops").get<double>() * 1e-12,
        report.at("world_size").get<int>());
    if (const auto use = core_use(report); use && use->unused_share() > 0) {
      text += fmt::format("Unused: {}, on {} × {}\n", unused_text(*use),
                          report.at("nodes").get<int>(), report.at("instance").get<std::string>());
    }
    text += slow_parts_text(report) + validity_text(report) + calibrated_text(report) + "\n" +
            print_breakdown(report.at("simulated")) + kDataNote + "\n";
    if (report.at("simulated").contains("attribution"))
      text += print_attribution(report.at("simulated")) + "\n";
    if (report.contains("memory")) text += print_memory(report.at("memory")) + "\n";
    if (report.contains("checkpoints")) text += print_checkpoints(report.at("checkpoints")) + "\n";
    text += print_coverage(report.at("simulated").at("coverage"));
    if (report.contains("portability")) text += print_portability(report.at("portability"));
  }
  if (report.contains("measured")) text += print_measured(report);
  return text;
}

}  // namespace trellis::analysis
