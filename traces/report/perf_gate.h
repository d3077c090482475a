#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/problem.h"
#include "traces/report/run_diff.h"

/// A gate for continuous integration: a run against a baseline file. Simulated time and modelled
/// memory are integers that do not depend on the host, so a limit holds exactly and 0% is a useful
/// one.
namespace trellis::analysis {

/// A share in millionths, read from "2%", "0.5 %" or "0%": compared without rounding.
struct Limit {
  std::int64_t millionths = 0;
  [[nodiscard]] bool passed(std::int64_t before, std::int64_t after) const;
  [[nodiscard]] std::string text() const;
};
/// Throws ConfigError that names `option`.
[[nodiscard]] Limit parse_limit(const std::string& option, const std::string& text);

struct GateLimits {
  Limit step_time, memory;
};

/// Schema trellis.gate_baseline/1: what of a run does not depend on the host, and the settings that
/// decide what was simulated.
[[nodiscard]] nlohmann::json make_baseline(const ReportFile& run);
/// The run inside a baseline file. Throws ConfigError: no file (with the command that makes one),
/// cut off, another schema.
[[nodiscard]] ReportFile read_baseline(const std::filesystem::path& file);

struct GateMetric {
  std::string name, unit;  ///< unit: "ps" or "bytes"
  std::int64_t before = 0, after = 0;
  Limit limit;
  [[nodiscard]] bool passed() const { return limit.passed(before, after); }
  /// Better by more than the limit: the baseline should follow, or the gain can be lost unseen.
  [[nodiscard]] bool improved() const {
    return limit.passed(after, before) == false && after < before;
  }
};

struct GateResult {
  std::string baseline, run;
  std::vector<GateMetric> metrics;
  RunDiff diff;
  [[nodiscard]] bool passed() const;
  [[nodiscard]] bool improved() const;
};

/// Throws ConfigError with every reason why the two cannot be compared: instance, nodes, evidence,
/// a setting of model, layout, batch or precision; with `allow_config_change` these are compared
/// too, and said.
[[nodiscard]] GateResult judge(const ReportFile& baseline, const ReportFile& run,
                               const GateLimits& limits, bool allow_config_change = false);

/// One limit for tools that show checks; `problem`: when it does not hold.
struct GateCheck {
  std::string name;
  std::optional<Problem> problem;
};
[[nodiscard]] std::vector<GateCheck> gate_checks(const GateResult& result);

[[nodiscard]] nlohmann::json to_json(const GateResult& result);  ///< trellis.gate/1
[[nodiscard]] std::string gate_text(const GateResult& result);
[[nodiscard]] std::string gate_markdown(const GateResult& result);

}  // namespace trellis::analysis
