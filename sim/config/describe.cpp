#include "sim/config/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace trellis::sim {
namespace {

constexpr double kGiB = 0x1p30;

/// A figure that follows from the parameters.
struct Derived {
  const char* key;
  double value;
  const char* unit;
};

std::vector<Derived> derived(const SystemConfig& s) {
  const CoreConfig& core = s.chip.core;
  const double cores_per_node = s.logical_cores_per_node();
  const double dma = core.dma.engine_rate.value * core.dma.engines;
  return {
      {"nodes", static_cast<double>(s.nodes), ""},
      {"chips", static_cast<double>(s.nodes * s.instance.chips), ""},
      {"logical_cores_per_chip", static_cast<double>(s.logical_cores_per_chip()), ""},
      {"logical_cores", static_cast<double>(s.logical_cores()), ""},
      {"core.peak_bf16", s.peak_per_logical_core().value * 1e-12, "TFLOPS"},
      {"core.hbm", static_cast<double>(s.hbm_per_logical_core().value) / kGiB, "GiB"},
      {"core.hbm_bandwidth", s.chip.hbm_bandwidth.value / s.logical_cores_per_chip() * 1e-9, "GB/s"},
      {"core.dma_bandwidth", dma * 1e-9, "GB/s"},
      {"core.sbuf", static_cast<double>(core.sbuf.value) / 0x1p20, "MiB"},
      {"core.psum", static_cast<double>(core.psum.value) / 0x1p20, "MiB"},
      {"instance.peak_bf16", s.peak_per_logical_core().value * cores_per_node * 1e-15, "PFLOPS"},
      {"instance.hbm", static_cast<double>(s.chip.hbm.value * s.instance.chips) / kGiB, "GiB"},
      {"instance.hbm_bandwidth", s.chip.hbm_bandwidth.value * s.instance.chips * 1e-12, "TB/s"},
      {"instance.efa", s.instance.efa.bandwidth.value * cores_per_node * 8e-9, "Gbps"},
      {"total.peak_bf16", s.peak_per_logical_core().value * s.logical_cores() * 1e-15, "PFLOPS"},
  };
}

}  // namespace

nlohmann::json describe(const SystemConfig& system) {
  nlohmann::json out = {{"schema", "trellis.describe/1"}, {"instance", system.instance.name}, {"generation", system.chip.generation},
      {"nodes", system.nodes}, {"worst_evidence", name(system.worst_evidence())}};
  auto& parameters = out["parameters"] = nlohmann::json::array();
  for (const Parameter& p : system.parameters) {
    parameters.push_back({{"key", p.key}, {"value", p.value}, {"source", p.source}, {"evidence", name(p.evidence)}, {"range", p.range}});
  }
  auto& totals = out["derived"] = nlohmann::json::array();
  for (const Derived& d : derived(system)) totals.push_back({{"key", d.key}, {"value", d.value}, {"unit", d.unit}});
  return out;
}

std::string describe_text(const SystemConfig& system) {
  std::size_t key_width = 0;
  std::size_t value_width = 0;
  for (const Parameter& p : system.parameters) {
    key_width = std::max(key_width, p.key.size());
    value_width = std::max(value_width, p.value.size());
  }
  std::string text = fmt::format("{} ({}), {} node{}\n\nDerived, per logical core, instance and in total\n", system.instance.name, system.chip.generation,
      system.nodes, system.nodes == 1 ? "" : "s");
  for (const Derived& d : derived(system)) text += fmt::format("  {:<{}}  {:.6g} {}\n", d.key, key_width, d.value, d.unit);
  text += "\nParameters, per physical core where they name a core\n";
  for (const Parameter& p : system.parameters) {
    text += fmt::format("  {:<{}}  {:<{}}  {:<10}  {}{}\n", p.key, key_width, p.value, value_width, name(p.evidence), p.source,
        p.range.empty() ? "" : " [" + p.range + "]");
  }
  return text;
}

}  // namespace trellis::sim
