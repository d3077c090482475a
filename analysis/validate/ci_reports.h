#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/problem.h"

/// Writes the problems that checks found in the two forms that continuous integration shows: JUnit
/// XML for its list of tests, SARIF 2.1.0 for marks next to the lines of a file.
namespace trellis::analysis {

/// One check: a file that was read, a limit that was compared.
struct Check {
  std::string name;
  std::vector<Problem> problems;  ///< empty: it passed
  bool judged = true;             ///< false: nothing could be compared; JUnit calls that an error
};

[[nodiscard]] std::string junit_xml(const std::string& suite, const std::vector<Check>& checks);
/// `tool`: whose rules these are, "trellis validate". A problem's key is its rule.
[[nodiscard]] nlohmann::json sarif_log(const std::string& tool, const std::vector<Check>& checks);
/// {file, line, key, expected, got, text}; what a problem does not say is left out.
[[nodiscard]] nlohmann::json problem_json(const Problem& problem);

/// Options --junit and --sarif of a verb.
struct CiFiles {
  std::string junit, sarif;
  /// Writes those that were asked for.
  void write(const std::string& tool, const std::vector<Check>& checks) const;
};

}  // namespace trellis::analysis
