#include "trainer/report/software_memory.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "trainer/report/memory_plan.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

constexpr double kGiB = 1 << 30;

/// The one published breakdown of a training graph's memory; the compiler's "GB" are GiB, as its limit of 16.00 says.
constexpr const char* kBreakdownSource =
    "torchneuronx ctx_8192.log, NCC_EOOM002: Llama-3.1-8B LoRA, sequence 8192, trn1.2xlarge TP 2: 18.12 GiB per core = 7.69 I/O + 8.88 scratch + 1.02 DMA rings + rest";
constexpr double kTotal = 18.12, kInputsOutputs = 7.69, kScratch = 8.88, kRings = 1.02;

/// Activations and temporaries of this trainer at the peak of that run, GiB: row C01-8192 of `trellis accuracy memory`, 4.01.
constexpr double kTrainerScratch = 4.01;

/// Modules of Hugging Face on NxD: the published breakdown is of them.
bool has_ratio(const std::string& software) { return software == "nxd" || software == "optimum-neuron"; }

std::int64_t sum(const json& peak, const auto& keys) {
  std::int64_t bytes = 0;
  for (const char* key : keys) bytes += peak.at(std::string(key) + "_bytes").get<std::int64_t>();
  return bytes;
}

json of_phase(const MemoryRunFacts& facts, const json& rank, const json& phase) {
  const json& peak = phase.at("at_peak");
  const std::int64_t inputs_outputs = sum(peak, std::array{"parameter", "gradient", "optimizer_state", "input"});
  const std::int64_t held = sum(peak, std::array{"activation", "temporary"});
  const auto scratch = std::llround(static_cast<double>(held) * kScratch / kTrainerScratch);
  const std::int64_t gradients = facts.functionalization ? peak.at("gradient_bytes").get<std::int64_t>() : 0;
  return {{"software", facts.software},
          {"rank", rank.at("rank")},
          {"phase", phase.at("phase")},
          {"inputs_outputs_bytes", inputs_outputs},
          {"scratch_bytes", scratch},
          {"scratch_of_this_trainer_bytes", held},
          {"unaliased_gradient_bytes", gradients},
          {"runtime_bytes", runtime_bytes()},
          {"total_bytes", inputs_outputs + scratch + gradients + runtime_bytes()},
          {"evidence", "estimated"},
          {"source", kBreakdownSource}};
}

}  // namespace

json runtime_memory() {
  const auto row = [](const char* what, double gib) {
    return json{{"what", what}, {"bytes_per_core", static_cast<std::int64_t>(gib * kGiB)}, {"evidence", "estimated"}, {"source", kBreakdownSource}};
  };
  return json::array({row("DMA rings", kRings), row("the rest that the runtime names no further (code, its own buffers)", kTotal - kInputsOutputs - kScratch - kRings)});
}

std::int64_t runtime_bytes() {
  std::int64_t bytes = 0;
  for (const json& row : runtime_memory()) bytes += row.at("bytes_per_core").get<std::int64_t>();
  return bytes;
}

json software_memory(const MemoryRunFacts& facts, const json& ranks) {
  if (!has_ratio(facts.software)) return nullptr;
  json most;
  for (const json& rank : ranks) {
    for (const json& phase : rank.at("phases")) {
      if (phase.at("phase") == "optimizer") continue;
      json one = of_phase(facts, rank, phase);
      if (most.is_null() || one.at("total_bytes") > most.at("total_bytes")) most = std::move(one);
    }
  }
  return most;
}

}  // namespace trellis::trainer
