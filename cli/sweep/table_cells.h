#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "cli/sweep/runner.h"

namespace trellis::cli {

/// A column of the sweep's table in files: whole numbers, numbers or texts; a cell without a value is none of them.
struct SweepColumn {
  enum class Type { kText, kInteger, kReal, kFlag };
  std::string name;
  Type type = Type::kText;
};
using SweepCell = std::variant<std::monostate, std::string, std::int64_t, double, bool>;

[[nodiscard]] const std::vector<SweepColumn>& sweep_columns();
/// The row's cells, one for each column, of the column's type or empty.
[[nodiscard]] std::vector<SweepCell> sweep_cells(const SweepResult& result, const SweepRow& row);

}  // namespace trellis::cli
