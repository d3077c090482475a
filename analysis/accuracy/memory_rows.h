#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

/// Published runs that fitted, and runs that were out of memory, compared with the verdicts of
/// `trellis memory`.
namespace trellis::analysis {

/// One row of benchmarks/published/memory.yaml.
struct MemoryRow {
  std::string id, source, config, instance;  ///< config: a path
  std::vector<std::string> overrides;
  int nodes = 1;
  bool fits = false;               ///< as published
  bool functionalization = false;  ///< see `trellis memory --functionalization`
  double published_gib = 0;        ///< per logical core; 0: not published
};

struct MemoryAnswer {
  std::string error;    ///< why it could not be run; "": it was
  std::string verdict;  ///< fits, tight, does_not_fit
  double needed_gib = 0, capacity_gib = 0;
  [[nodiscard]] bool fits() const { return verdict == "fits" || verdict == "tight"; }
};

/// Throws ConfigError with every problem of the file.
[[nodiscard]] std::vector<MemoryRow> read_memory_rows();
/// One process of this program per row, as many at once as the host has cores; `done` is notified
/// of each.
[[nodiscard]] std::vector<MemoryAnswer> answer_memory_rows(
    const std::vector<MemoryRow>& rows,
    const std::function<void(const MemoryRow&, const MemoryAnswer&)>& done);
/// Wrong verdicts first. Schema trellis.accuracy_memory/1.
[[nodiscard]] std::string memory_accuracy_text(const std::vector<MemoryRow>& rows,
                                               const std::vector<MemoryAnswer>& answers);
[[nodiscard]] nlohmann::json memory_accuracy_json(const std::vector<MemoryRow>& rows,
                                                  const std::vector<MemoryAnswer>& answers);

}  // namespace trellis::analysis
