#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "analysis/calibrate/measurement_row.h"

namespace trellis::analysis {

/// A part of a step that was measured alone: a kernel says something about computation only, a
/// collective about communication only.
enum class PartKind : std::uint8_t { kKernel, kCollective };
[[nodiscard]] std::string_view name(PartKind kind);

struct MeasuredPart {
  PartKind kind = PartKind::kKernel;
  std::string where;  ///< file:line
  std::string what;  ///< "matmul m=4096 k=4096 n=4096 dtype=bf16", "all_reduce ranks=32 size=16MiB"
  YamlDocument document;  ///< that `row.spec` belongs to
  PublishedRow row;       ///< its time is the measured one
  double model_us = 0;
};

/// A row of kind kernel or collective. `what`: the name, then key=value words: sizes, dtype,
/// variant, cores and measured (profiler, the default, or benchmark) of a kernel; ranks, size,
/// dtype (fp32 without it) and lnc of a collective. The time is `time_us`, or for a kernel the
/// total_time of `profile`: what neuron-profile view --output-format summary-json printed.
[[nodiscard]] MeasuredPart read_part(PartKind kind, const MeasurementRow& row,
                                     const std::filesystem::path& folder, std::size_t line);

/// Times each part with the model. Throws ConfigError with every row that it cannot time.
void time_parts(std::vector<MeasuredPart>& parts);

}  // namespace trellis::analysis
