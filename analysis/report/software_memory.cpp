#include "analysis/report/software_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/config/system_config.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;

constexpr double kGiB = 1 << 30;

/// The one published breakdown of a training graph's memory; the compiler's "GB" are GiB, as its
/// limit of 16.00 says.
constexpr const char* kBreakdownSource =
    "torchneuronx ctx_8192.log, NCC_EOOM002: Llama-3.1-8B LoRA, sequence 8192, trn1.2xlarge TP 2: "
    "18.12 GiB per core = 7.69 I/O + 8.88 scratch + 1.02 DMA rings + rest";
constexpr double kTotal = 18.12, kInputsOutputs = 7.69, kScratch = 8.88, kRings = 1.02;

/// Activations and temporaries of this trainer at the peak of that run, GiB: row C01-8192 of
/// `trellis accuracy memory`, 4.01.
constexpr double kTrainerScratch = 4.01;

/// TRL's preference losses read their metrics on the host, which ends the graph between loss and
/// derivative. What the derivative reads is then a tensor of the runtime, not scratch; the next
/// micro-batch's forward is given its tensors while the derivative still runs; and the variables
/// that hold logits at that moment are tensors too: all of them, each half less its last token, and
/// as many again, which come and go with a forward. kCutSource, MiB of both cores: 20,372 without,
/// + 1,279 (what a derivative reads), + 3,300 and
/// + 4,579 (so much again, and four times the logits, which are 250.5 MiB of a core). Its run of
/// length 2,048 was refused a tensor of [2047, 64128] in bf16, with 11.01 GiB of tensors and 3.63
/// GiB of scratch there.
constexpr const char* kCutSource = "telemetry of torchneuronx orpo_llama31_8b_len1024";
constexpr std::int64_t kLogitsAtCut = 4, kMicroBatchesAtCut = 2;

/// Modules of Hugging Face on NxD: the published breakdown is of them.
bool has_ratio(const std::string& software) {
  const auto profile = sim::software_profile(software);
  return profile && profile->is_xla;
}

std::int64_t sum(const json& categories, const auto& keys) {
  std::int64_t bytes = 0;
  for (const char* key : keys)
    bytes += categories.at(std::string(key) + "_bytes").get<std::int64_t>();
  return bytes;
}

std::int64_t held_bytes(const json& categories) {
  return sum(categories, std::array{"activation", "temporary"});
}

/// What the derivative of a micro-batch reads; 0 where it is of one graph with the forward.
std::int64_t saved_at_cut(const SoftwareFacts& facts, const json& rank) {
  if (facts.logits_at_cut_bytes == 0) return 0;
  for (const json& phase : rank.at("phases")) {
    if (phase.at("phase") == "backward") return held_bytes(phase.at("at_start"));
  }
  return 0;
}

json of_phase(const SoftwareFacts& facts, const json& rank, const json& phase) {
  const json& peak = phase.at("at_peak");
  const std::int64_t inputs_outputs =
      sum(peak, std::array{"parameter", "gradient", "optimizer_state", "input"});
  const std::int64_t saved = saved_at_cut(facts, rank);
  const std::int64_t held = sum(peak, std::array{"temporary"}) +
                            std::max<std::int64_t>(sum(peak, std::array{"activation"}) - saved, 0);
  const bool in_micro_batch = phase.at("phase") == "forward" || phase.at("phase") == "backward";
  const std::int64_t at_cut =
      in_micro_batch ? kMicroBatchesAtCut * saved + kLogitsAtCut * facts.logits_at_cut_bytes : 0;
  const auto scratch = std::llround(static_cast<double>(held) * kScratch / kTrainerScratch);
  const std::int64_t gradients =
      facts.functionalization && in_micro_batch ? peak.at("gradient_bytes").get<std::int64_t>() : 0;
  return {{"software", facts.name},
          {"rank", rank.at("rank")},
          {"phase", phase.at("phase")},
          {"inputs_outputs_bytes", inputs_outputs},
          {"scratch_bytes", scratch},
          {"scratch_of_this_trainer_bytes", held},
          {"unaliased_gradient_bytes", gradients},
          {"cut_bytes", at_cut},
          {"runtime_bytes", runtime_bytes()},
          {"total_bytes", inputs_outputs + scratch + gradients + at_cut + runtime_bytes()},
          {"evidence", "estimated"},
          {"source", at_cut == 0 ? std::string(kBreakdownSource)
                                 : fmt::format("{}; between loss and derivative: {}",
                                               kBreakdownSource, kCutSource)}};
}

std::string verdict(std::int64_t needed, std::int64_t capacity) {
  if (needed > capacity) return "does_not_fit";
  return static_cast<double>(needed) <= (1 - kSoftwareMemoryError) * static_cast<double>(capacity)
             ? "fits"
             : "tight";
}

}  // namespace

json runtime_memory() {
  const auto row = [](const char* what, double gib) {
    return json{{"what", what},
                {"bytes_per_core", static_cast<std::int64_t>(gib * kGiB)},
                {"evidence", "estimated"},
                {"source", kBreakdownSource}};
  };
  return json::array({row("DMA rings", kRings),
                      row("the rest that the runtime names no further (code, its own buffers)",
                          kTotal - kInputsOutputs - kScratch - kRings)});
}

std::int64_t runtime_bytes() {
  std::int64_t bytes = 0;
  for (const json& row : runtime_memory()) bytes += row.at("bytes_per_core").get<std::int64_t>();
  return bytes;
}

json software_memory(const SoftwareFacts& facts, const json& ranks) {
  if (!has_ratio(facts.name)) return nullptr;
  json most;
  for (const json& rank : ranks) {
    for (const json& phase : rank.at("phases")) {
      json one = of_phase(facts, rank, phase);
      if (most.is_null() || one.at("total_bytes") > most.at("total_bytes")) most = std::move(one);
    }
  }
  most["capacity_bytes"] = ranks.at(0).at("capacity_bytes");
  most["verdict"] = verdict(most.at("total_bytes"), most.at("capacity_bytes"));
  return most;
}

}  // namespace trellis::analysis
