#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace trellis::analysis {

/// A setting of a run by its dotted key, "model.num_layers", and its value as YAML.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// Files of a finished run: its report and, next to it, the configuration that it was made from.
struct ReportFile {
  std::filesystem::path path;  ///< of the report
  nlohmann::json report;       ///< trellis.run_report/1, checked
  Settings settings;           ///< of hparams.yaml, in the file's order; empty when there is none
};

/// `run`: a run's folder or its report.json. Throws ConfigError: no such file, not JSON (cut off,
/// or something else), of another schema, or a key that is missing or of the wrong type, with its
/// path.
[[nodiscard]] ReportFile read_report_file(const std::filesystem::path& run);

/// JSON from a file; throws ConfigError with the place where it stops being JSON. `expected`: what
/// should be there, for the message.
[[nodiscard]] nlohmann::json read_json(const std::filesystem::path& file,
                                       const std::string& expected);

/// Throws one ConfigError with everything that is wrong with a trellis.run_report/1 document;
/// `where` names it.
void check_run_report(const nlohmann::json& report, const std::string& where);

}  // namespace trellis::analysis
