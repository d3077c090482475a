#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "traces/report/step_view.h"
#include "traces/report/validity.h"

/// A user's own measurements, as two factors on a simulated step (schema trellis.calibration/2,
/// written by `trellis calibrate`).
namespace trellis::analysis {

/// Times of a step's parts, multiplied: communication that the step waits for, and everything else.
struct StepFactors {
  static constexpr double kLeast = 0.25,
                          kMost = 4;  ///< a factor beyond them says that something else is wrong
  double compute = 1;
  double communication = 1;
  bool operator==(const StepFactors&) const = default;
};

/// A simulated step in the two parts that the factors know.
struct StepParts {
  double compute_s = 0;        ///< matmul, other compute, bubble, optimizer, other
  double communication_s = 0;  ///< exposed TP, PP and DP communication
  [[nodiscard]] double seconds(const StepFactors& factors) const {
    return factors.compute * compute_s + factors.communication * communication_s;
  }
};
[[nodiscard]] StepParts parts_of(const StepView& step);

/// Where a factor comes from.
enum class FactorBasis : std::uint8_t {
  kOwn,     ///< measurements distinguish it
  kShared,  ///< they cannot distinguish it from the other one: both have one factor
  kUnseen,  ///< nothing that was measured has such a part: it stays 1
};
[[nodiscard]] std::string_view name(FactorBasis basis);

struct Calibration {
  std::string source;  ///< the measurements
  std::int64_t fitted_rows = 0, held_out_rows = 0;
  FactorBasis compute = FactorBasis::kOwn, communication = FactorBasis::kOwn;
  StepFactors factors;
  ValidatedRecord record;  ///< of the steps that were held out, or of the fitted ones where none
                           ///< was: what the range comes from; none: no step was measured
};

[[nodiscard]] std::string to_yaml(const Calibration& calibration);
/// Throws ConfigError with every problem of the file.
[[nodiscard]] Calibration read_calibration(const std::filesystem::path& file);

/// Key "calibrated" of a run report: the step time with the factors, their evidence "fitted
/// (user)", and how far it is to be believed.
[[nodiscard]] nlohmann::json calibrated_json(const Calibration& calibration,
                                             const nlohmann::json& step_report,
                                             const StepPlace& place, std::int64_t tokens_per_step);
/// Its lines for people; "" when the report has none.
[[nodiscard]] std::string calibrated_text(const nlohmann::json& report);

}  // namespace trellis::analysis
