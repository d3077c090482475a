#include "traces/report/software_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/config/load_software.h"
#include "sim/config/software_memory.h"
#include "sim/config/system_config.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;

constexpr double kGiB = 1 << 30;

/// Modules of Hugging Face on NxD: the published breakdown is of them.
bool has_ratio(const std::string& software) { return sim::software_stack(software).is_xla; }

std::int64_t sum(const json& categories, const auto& keys) {
  std::int64_t bytes = 0;
  for (const char* key : keys)
    bytes += categories.at(std::string(key) + "_bytes").get<std::int64_t>();
  return bytes;
}

std::int64_t held_bytes(const json& categories) {
  return sum(categories, std::array{"activation", "temporary"});
}

/// Bytes that the derivative of a micro-batch reads; 0 where it is in one graph with the forward.
std::int64_t saved_at_cut(const SoftwareFacts& facts, const json& rank) {
  if (facts.logits_at_cut_bytes == 0) return 0;
  for (const json& phase : rank.at("phases")) {
    if (phase.at("phase") == "backward") return held_bytes(phase.at("at_start"));
  }
  return 0;
}

json runtime_rows(const sim::SoftwareMemory& published) {
  const auto row = [&](const char* what, double gib) {
    return json{{"what", what},
                {"bytes_per_core", static_cast<std::int64_t>(gib * kGiB)},
                {"evidence", "estimated"},
                {"source", published.breakdown_source}};
  };
  return json::array(
      {row("DMA rings", published.dma_rings),
       row("the rest that the runtime names no further (code, its own buffers)",
           published.total - published.inputs_outputs - published.scratch - published.dma_rings)});
}

std::int64_t runtime_bytes(const sim::SoftwareMemory& published) {
  std::int64_t bytes = 0;
  for (const json& row : runtime_rows(published))
    bytes += row.at("bytes_per_core").get<std::int64_t>();
  return bytes;
}

json of_phase(const SoftwareFacts& facts, const sim::SoftwareMemory& published, const json& rank,
              const json& phase) {
  const json& peak = phase.at("at_peak");
  const std::int64_t inputs_outputs =
      sum(peak, std::array{"parameter", "gradient", "optimizer_state", "input"});
  const std::int64_t saved = saved_at_cut(facts, rank);
  const std::int64_t held = sum(peak, std::array{"temporary"}) +
                            std::max<std::int64_t>(sum(peak, std::array{"activation"}) - saved, 0);
  const bool in_micro_batch = phase.at("phase") == "forward" || phase.at("phase") == "backward";
  const std::int64_t at_cut =
      in_micro_batch
          ? std::llround(published.cut_micro_batches * static_cast<double>(saved) +
                         published.cut_logits * static_cast<double>(facts.logits_at_cut_bytes))
          : 0;
  const auto scratch =
      std::llround(static_cast<double>(held) * published.scratch / published.counted_scratch);
  const std::int64_t gradients =
      facts.functionalization && in_micro_batch ? peak.at("gradient_bytes").get<std::int64_t>() : 0;
  const std::int64_t runtime = runtime_bytes(published);
  return {{"software", facts.name},
          {"rank", rank.at("rank")},
          {"phase", phase.at("phase")},
          {"inputs_outputs_bytes", inputs_outputs},
          {"scratch_bytes", scratch},
          {"scratch_of_this_trainer_bytes", held},
          {"unaliased_gradient_bytes", gradients},
          {"cut_bytes", at_cut},
          {"runtime_bytes", runtime},
          {"total_bytes", inputs_outputs + scratch + gradients + at_cut + runtime},
          {"evidence", "estimated"},
          {"relative_error", published.error},
          {"source", at_cut == 0 ? published.breakdown_source
                                 : fmt::format("{}; between loss and derivative: {}",
                                               published.breakdown_source, published.cut_source)}};
}

std::string verdict(std::int64_t needed, std::int64_t capacity, double error) {
  if (needed > capacity) return "does_not_fit";
  return static_cast<double>(needed) <= (1 - error) * static_cast<double>(capacity) ? "fits"
                                                                                    : "tight";
}

}  // namespace

json runtime_memory() { return runtime_rows(sim::load_software_memory()); }

std::int64_t runtime_bytes() { return runtime_bytes(sim::load_software_memory()); }

json software_memory(const SoftwareFacts& facts, const json& ranks) {
  if (!has_ratio(facts.name)) return nullptr;
  const sim::SoftwareMemory published = sim::load_software_memory();
  json most;
  for (const json& rank : ranks) {
    for (const json& phase : rank.at("phases")) {
      json one = of_phase(facts, published, rank, phase);
      if (most.is_null() || one.at("total_bytes") > most.at("total_bytes")) most = std::move(one);
    }
  }
  most["capacity_bytes"] = ranks.at(0).at("capacity_bytes");
  most["verdict"] = verdict(most.at("total_bytes"), most.at("capacity_bytes"), published.error);
  return most;
}

}  // namespace trellis::analysis
