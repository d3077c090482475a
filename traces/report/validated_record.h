#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/yaml/yaml.h"

/// Measured steps and their predictions: what the range of a predicted step comes from (schema
/// trellis.validated/2, written by `trellis accuracy training --write-validated`).
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

/// The properties of a run that decide which measured steps are comparable.
struct StepPlace {
  std::string instance;
  std::string software = "none";  ///< key `software` of the configuration
  std::int64_t parameters = 1, sequence_length = 1, nodes = 1, tp = 1, pp = 1, cp = 1, dp = 1;
  std::int64_t experts = 0, lora = 0;  ///< 0: a dense model; 1 with adapters, 0 without
  std::vector<std::string> unlike =
      {};  ///< what else distinguishes it: "other hardware numbers: …"
  bool operator==(const StepPlace&) const = default;
};

/// "trn2.48xlarge" → "trn2"; of trn2u too: one chip.
[[nodiscard]] std::string generation_of(const std::string& instance);

/// How far two runs are from each other: one for each doubling of parameters, sequence length,
/// nodes, TP, PP, CP and DP, and one for each of: other software, another generation, another
/// instance of the same generation, experts, LoRA.
struct StepDistance {
  double total = 0;
  std::vector<std::pair<std::string, double>> parts;  ///< what differs, largest first
};
[[nodiscard]] StepDistance distance_between(const StepPlace& a, const StepPlace& b);

/// A measured step and its prediction.
struct ComparedStep {
  std::string id, family, size;  ///< family: of models; size: its class
  StepPlace place;
  double published_s = 0, predicted_s = 0;
  [[nodiscard]] double factor() const;  ///< max(model / published, published / model)
  bool operator==(const ComparedStep&) const = default;
};

/// The ranges of the steps of one instance and size class.
struct ValidatedGroup {
  std::string instance, size;  ///< "any": all groups together
  Span parameters, sequence_length, nodes, tp, pp, cp, experts, lora;
  bool operator==(const ValidatedGroup&) const = default;
};

struct ValidatedRecord {
  std::vector<ComparedStep> steps;
  std::vector<ValidatedGroup> groups;  ///< of the steps, in the order in which they come
  ValidatedGroup all;
  [[nodiscard]] double worst_factor() const;
};
[[nodiscard]] ValidatedRecord make_validated_record(std::vector<ComparedStep> steps);

/// The properties that a group spans.
struct StepProperty {
  const char* key;
  const char* text;
  Span ValidatedGroup::* span;
  std::int64_t StepPlace::* value;
};
inline constexpr StepProperty kStepProperties[] = {
    {"parameters", "parameters", &ValidatedGroup::parameters, &StepPlace::parameters},
    {"sequence_length", "tokens per sequence", &ValidatedGroup::sequence_length,
     &StepPlace::sequence_length},
    {"nodes", "nodes", &ValidatedGroup::nodes, &StepPlace::nodes},
    {"tp", "tensor-parallel ranks", &ValidatedGroup::tp, &StepPlace::tp},
    {"pp", "pipeline stages", &ValidatedGroup::pp, &StepPlace::pp},
    {"cp", "context-parallel ranks", &ValidatedGroup::cp, &StepPlace::cp},
    {"experts", "experts", &ValidatedGroup::experts, &StepPlace::experts},
    {"lora", "LoRA", &ValidatedGroup::lora, &StepPlace::lora}};

/// $TRELLIS_PUBLISHED_DIR, what lies next to the program, or benchmarks/published of the source
/// tree.
[[nodiscard]] std::filesystem::path published_directory();
/// validated.yaml of published_directory(); none when it is not there. Throws ConfigError with
/// every problem of it.
[[nodiscard]] std::optional<ValidatedRecord> read_validated_record();
[[nodiscard]] ValidatedRecord parse_validated_record(const std::string& text,
                                                     const std::string& name);
/// The key "steps" of a file that has more; problems collect in its document.
[[nodiscard]] ValidatedRecord read_steps(const YamlMap& root);
[[nodiscard]] std::string steps_yaml(const ValidatedRecord& record);
/// The file's text; parsing it gives the record up to six digits of its times.
[[nodiscard]] std::string to_yaml(const ValidatedRecord& record);

}  // namespace trellis::analysis
