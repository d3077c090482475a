#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/portability/portability_check.h"

/// The profile of TorchNeuron, AWS's PyTorch backend: device `neuron` on PrivateUse1, with its own
/// process group. Sources: the documentation of the Neuron SDK 2.33 (PyTorch native, beta), and for
/// the process group and the fallback the public snapshot of April 2026.
namespace trellis::analysis {
namespace {

using nlohmann::json;

constexpr const char* kAbout =
    "TorchNeuron (beta, Neuron SDK 2.33): device neuron on PrivateUse1, process group neuron";

/// It draws no numbers on the device.
constexpr std::array<std::string_view, 11> kRandom{
    "bernoulli", "normal",         "uniform",  "random",      "exponential", "rand",
    "randn",     "native_dropout", "randperm", "multinomial", "log_normal"};

std::string base_of(const std::string& op) {
  std::string name = op.substr(0, op.find('.'));
  if (name.ends_with('_')) name.pop_back();
  return name;
}

std::vector<Requirement> requirements_of(const trainer::RunConfig& config) {
  const std::string generation = config.hardware;
  const int processes = config.world_size();
  return {
      {"machine", "Trn2 or Trn3", generation.empty() ? "not said" : generation,
       generation == "trn2" || generation == "trn3"},
      {"LibTorch", "2.13.0 with torch-neuronx 2.13.3.0, or 2.14.0 with 2.14.3.0",
       "this program: " TRELLIS_TORCH_VERSION, true},
      {"Python", "CPython 3.12 to 3.14: its kernels are Python, no library of it is without",
       "trellis train starts no interpreter: run the model from Python (docs/guides/pytorch.md)",
       false},
      {"processes", fmt::format("one per logical core: {}", processes),
       fmt::format("torchrun --nproc-per-node {} on {} hosts", config.trainer.devices,
                   config.trainer.num_nodes),
       true},
      {"start", "init_process_group(\"neuron\") before any tensor is on the device",
       "checked by torch-neuronx itself", true}};
}

/// "": as here. `stops`: the run ends there.
std::string treatment(const json& row, bool& stops) {
  const std::string op = row.at("operator");
  if (op == "send_recv" || op == "permute") {
    stops = true;
    return "no send or receive in its process group (April 2026; ask its release notes)";
  }
  if (op == "all_to_all") return "even splits only, and no two ranks with LNC 2";
  const std::string base = base_of(op);
  if (std::find(kRandom.begin(), kRandom.end(), base) != kRandom.end())
    return "runs on the CPU there: other random numbers";
  if (!row.at("portable").get<bool>()) return row.at("on_device");
  return "";
}

}  // namespace

PortabilityCheck check_for_torch_neuron(const trainer::RunConfig& config, const json& operators) {
  PortabilityCheck check{.target = "torch_neuron", .about = kAbout};
  check.requirements = requirements_of(config);
  for (const json& row : operators.at("operators")) {
    ++check.operators;
    bool stops = false;
    const std::string there = treatment(row, stops);
    if (there.empty()) continue;
    OperatorNote note{row.at("operator"), row.at("dtype"), row.at("count"), there,
                      row.at("places").get<std::vector<std::string>>()};
    (stops ? check.lacking : check.other).push_back(std::move(note));
  }
  return check;
}

}  // namespace trellis::analysis
