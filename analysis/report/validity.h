#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/yaml.h"

/// How far a predicted step time is to be believed: where predictions were compared with published
/// steps (schema trellis.validated/1, written by `trellis accuracy training --write-validated`),
/// and what they say about a run.
namespace trellis::analysis {

/// Least and most of a property, both inside.
struct Span {
  std::int64_t least = 0, most = 0;
  [[nodiscard]] bool has(std::int64_t value) const { return least <= value && value <= most; }
  /// How often `value` must be halved or doubled to come inside; 0 inside; from something to
  /// nothing, and back, is one step more.
  [[nodiscard]] double doublings_to(std::int64_t value) const;
  bool operator==(const Span&) const = default;
};

/// Published steps of one instance and size class, and how far off their predictions were.
struct ValidatedGroup {
  std::string instance, size;  ///< "any": all groups together
  std::int64_t rows = 0;
  Span parameters, sequence_length, nodes, tp, pp, experts,
      lora;  ///< experts: 0 of a dense model; lora: 1 with adapters, 0 without
  double median_error = 0, p90_error = 0;   ///< of |model / published − 1|
  double p90_factor = 1, worst_factor = 1;  ///< of max(model / published, published / model)
  bool operator==(const ValidatedGroup&) const = default;
};

struct ValidatedRecord {
  std::vector<ValidatedGroup> groups;
  ValidatedGroup all;
};

/// What a run is, as far as the record knows such things.
struct StepPlace {
  std::string instance;
  std::int64_t parameters = 1, sequence_length = 1, nodes = 1, tp = 1, pp = 1, experts = 0,
               lora = 0;
  std::vector<std::string> unlike =
      {};  ///< what else distinguishes it: "other hardware numbers: …"
};

/// A published step and its prediction.
struct ComparedStep {
  StepPlace place;
  std::string size;  ///< its class
  double published_s = 0, predicted_s = 0;
};
/// One group for each instance and size class, in the order in which they come.
[[nodiscard]] ValidatedRecord make_validated_record(const std::vector<ComparedStep>& steps);

/// How much wider a range is for each doubling, or property, outside of the measured ones: an
/// assumption, stated with every range that uses it.
inline constexpr double kWiderPerStep = 1.1;

/// The range of a step time is [time / factor, time · factor].
struct Validity {
  std::vector<std::string> reasons;  ///< why it is exploratory; empty: validated
  double factor = 0;                 ///< 0: nothing is known, there is no record
  std::string basis;                 ///< what the range comes from, one sentence
  double measured_factor = 0;        ///< of the rows that `factor` begins with
  double steps_beyond = 0;           ///< doublings and properties beyond those rows: `factor` is
                                     ///< kWiderPerStep times wider for each
  [[nodiscard]] bool exploratory() const { return !reasons.empty(); }
};

/// $TRELLIS_PUBLISHED_DIR, what lies next to the program, or benchmarks/published of the source
/// tree.
[[nodiscard]] std::filesystem::path published_directory();
/// validated.yaml of published_directory(); none when it is not there. Throws ConfigError with
/// every problem of it.
[[nodiscard]] std::optional<ValidatedRecord> read_validated_record();
[[nodiscard]] ValidatedRecord parse_validated_record(const std::string& text,
                                                     const std::string& name);
/// The keys "groups" and "all" of a file that has more; problems collect in its document.
[[nodiscard]] ValidatedRecord read_groups(const YamlMap& root);
[[nodiscard]] std::string groups_yaml(const ValidatedRecord& record);
/// The file's text; parsing it gives the record up to four digits of its numbers.
[[nodiscard]] std::string to_yaml(const ValidatedRecord& record);

/// Inside the spans of a group of the run's instance: nine of ten of its rows lie within the range
/// (of all rows, where the group has fewer than three and all are worse). Outside: the worst of all
/// rows, 10 % wider for each doubling beyond the nearest group, and for each other thing that is
/// unlike it.
[[nodiscard]] Validity judge_validity(const std::optional<ValidatedRecord>& record,
                                      const StepPlace& place);

/// As reports give the time of a step: one conversion for all, so that ranges are equal bit by bit.
[[nodiscard]] constexpr double step_milliseconds(std::int64_t step_ps) {
  return static_cast<double>(step_ps) * 1e-12 * 1e3;
}

/// Key "validity" of a run report: {status, reasons, basis, factor, step_time_range_ms}; the last
/// two only when something is known.
[[nodiscard]] nlohmann::json to_json(const Validity& validity, double step_time_ms);
/// Two lines at most: range and its basis; what is exploratory. Of a report without the key (of an
/// older version) it says so.
[[nodiscard]] std::string validity_text(const nlohmann::json& report);
/// One line on a report's key "validity": "exploratory: reason; reason" or "validated: basis"; ""
/// when it is null.
[[nodiscard]] std::string validity_line(const nlohmann::json& validity);
/// Least and most of a `value` that is scaled as the step time is; none when nothing is known.
[[nodiscard]] std::optional<std::pair<double, double>> range_of(const nlohmann::json& report,
                                                                double value);
/// Four digits, or all before the point.
[[nodiscard]] std::string short_number(double value);
/// "4178 to 6220 ms", with ", exploratory" where it is that; "unknown".
[[nodiscard]] std::string range_text(const nlohmann::json& report);

}  // namespace trellis::analysis
