#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "trainer/config/run_config.h"

/// Checks whether a run would work on another device: what that needs, and which operators of the
/// run it does not have. Schema trellis.portability_check/1.
namespace trellis::analysis {

struct Requirement {
  std::string what, needed, got;
  bool met = true;
};

/// An operator of the run that the device treats otherwise.
struct OperatorNote {
  std::string op, dtype;  ///< dtype "": whatever the type
  std::int64_t count = 0;
  std::string there;  ///< what the device does
  std::vector<std::string> places;
};

struct PortabilityCheck {
  std::string target, about;  ///< "torch_neuron"; what that is, with its source
  std::vector<Requirement> requirements;
  std::int64_t operators = 0;         ///< of the run, by type
  std::vector<OperatorNote> lacking;  ///< the run stops there
  std::vector<OperatorNote> other;    ///< the run goes on: narrower types, the CPU
  /// Nothing is lacking and every requirement is met.
  [[nodiscard]] bool works() const;
};

/// `operators`: trellis.portability/1 of the run. TorchNeuron's own documents are the source.
[[nodiscard]] PortabilityCheck check_for_torch_neuron(const trainer::RunConfig& config,
                                                      const nlohmann::json& operators);
/// `found`: trellis.device_operators/1, what a device of LibTorch in this process said.
[[nodiscard]] PortabilityCheck check_for_device(const nlohmann::json& operators,
                                                const nlohmann::json& found);

[[nodiscard]] nlohmann::json to_json(const PortabilityCheck& check);
[[nodiscard]] std::string portability_text(const PortabilityCheck& check);
/// The operators of a run alone, as a table.
[[nodiscard]] std::string operators_text(const nlohmann::json& operators);

}  // namespace trellis::analysis
