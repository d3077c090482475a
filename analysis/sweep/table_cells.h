#pragma once

#include <string>
#include <vector>

#include "analysis/sweep/runner.h"
#include "traces/table_request.h"

namespace trellis::analysis {

/// A column of the sweep's table in files: whole numbers, numbers or texts; a cell without a value
/// is none of them.
struct SweepColumn {
  using Type = trainer::TableRequest::Type;
  std::string name;
  Type type = Type::kText;
};
using SweepCell = trainer::TableRequest::Cell;

[[nodiscard]] const std::vector<SweepColumn>& sweep_columns();
/// The row's cells, one for each column, of the column's type or empty.
[[nodiscard]] std::vector<SweepCell> sweep_cells(const SweepResult& result, const SweepRow& row);

}  // namespace trellis::analysis
