#pragma once

#include <string>
#include <vector>

/// A configuration of this program for another one that will run it on hardware.
namespace trellis::analysis {

/// A key without counterpart in the other program.
struct LeftOut {
  std::string key, value, where;  ///< of the configuration; "file:12"
  std::string why;
};

struct ExportedConfig {
  std::string text;  ///< what the other program reads
  std::vector<LeftOut> left_out;
};

/// NxDT's YAML: every key of NxDT's and NeMo's schemas with its value after overrides and
/// interpolation, also those that have no effect here. Keys that only this program has are left
/// out. Throws ConfigError (file:line) for a file that `trellis validate` refuses.
[[nodiscard]] ExportedConfig export_nxdt(const std::string& file,
                                         const std::vector<std::string>& overrides);

}  // namespace trellis::analysis
