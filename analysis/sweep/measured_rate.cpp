#include "analysis/sweep/measured_rate.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/number_text.h"

namespace trellis::analysis {
namespace {

/// NxDT has these numbers of a chip for whole nodes of 16: 3,040 and 10,672 TFLOPS.
std::optional<double> nxdt_peak(const sim::SystemConfig& system) {
  if (system.chip.generation == "trn1") return 190e12;
  if (system.chip.generation == "trn2") return 667e12;
  return std::nullopt;
}

/// FLOPs of a sequence, forward and twice that backward.
double nxdt_flops(const trainer::ModelSection& m) {
  const double s = m.encoder_seq_length, h = m.hidden_size, heads = m.num_attention_heads;
  const double head = m.head_dim > 0 ? m.head_dim : h / heads;
  const double qkv = 2 * s * (h * h + 2 * m.num_kv_heads * head * h), output = 2 * s * h * h;
  const double attention = 2 * s * s * h + 6 * heads * s * s + 2 * s * s * h;
  const double mlp = 3 * 2 * s * h * m.ffn_hidden_size;
  const double ends = 2 * (2 * s * m.vocab_size * h);
  return 3 * (m.num_layers * (qkv + attention + output + mlp) + ends);
}

bool is_llama(const trainer::ModelSection& m) {
  return !is_encoder(m) && !m.moe && !m.image && is_gated(m.activation);
}

}  // namespace

MeasuredRate measured_rate(const trainer::RunConfig& config, const sim::SystemConfig& system,
                           double sequences_per_s) {
  MeasuredRate rate;
  rate.name = config.name;
  rate.machine = fmt::format("{} × {}", config.trainer.num_nodes, system.instance.name);
  rate.sequences_per_s = sequences_per_s;
  rate.step_s = config.data.global_batch_size / sequences_per_s;
  rate.tokens_per_s = static_cast<double>(config.tokens_per_step()) / rate.step_s;
  rate.model_flops = config.model_flops_per_step();
  rate.peak_flops_per_s = config.world_size() * system.peak_per_logical_core().value;
  if (rate.mfu() > 1) {
    throw ConfigError(fmt::format(
        "--throughput: {} sequences/s are an MFU of {:.1f} %, and no run does more than the peak "
        "of its cores: expected at most {:.4g}, in sequences per second of the whole run",
        sequences_per_s, 100 * rate.mfu(), sequences_per_s / rate.mfu()));
  }
  const std::optional<double> peak = nxdt_peak(system);
  if (peak && is_llama(config.model)) {
    const double chips = static_cast<double>(config.trainer.num_nodes) * system.instance.chips;
    rate.nxdt_mfu = nxdt_flops(config.model) * sequences_per_s / (*peak * chips);
  }
  return rate;
}

nlohmann::json measured_rate_json(const MeasuredRate& r) {
  nlohmann::json document = {{"schema", "trellis.measured_rate/1"},
                             {"name", r.name},
                             {"machine", r.machine},
                             {"sequences_per_s", r.sequences_per_s},
                             {"tokens_per_s", r.tokens_per_s},
                             {"step_time_s", r.step_s},
                             {"model_flops_per_step", r.model_flops},
                             {"mfu_denominator_flops_per_s", r.peak_flops_per_s},
                             {"mfu", r.mfu()}};
  document["nxdt_mfu"] = r.nxdt_mfu ? nlohmann::json(*r.nxdt_mfu) : nlohmann::json();
  return document;
}

std::string measured_rate_text(const MeasuredRate& r) {
  std::string text = fmt::format(
      "{} on {} at {} measured sequences/s: {} tokens/s, a step of {:.4g} s; nothing was "
      "simulated\n"
      "MFU {:.1f} % = {:.4g} model FLOPs / ({:.4g} s × {:.1f} TFLOPS of all ranks); model FLOPs: 6 "
      "per parameter that a token is\n"
      "multiplied with and token (LoRA: 4), and causal attention; no recomputation\n",
      r.name, r.machine, r.sequences_per_s, rate_text(r.tokens_per_s), r.step_s, 100 * r.mfu(),
      r.model_flops, r.step_s, r.peak_flops_per_s * 1e-12);
  if (r.nxdt_mfu)
    text += fmt::format(
        "NxDT's llama_perf_estimate.py says {:.1f} %: it counts look-up, softmax and attention "
        "over "
        "the whole sequence, of\n"
        "190 (Trn1) and 667 (Trn2) TFLOPS of each chip\n",
        100 * *r.nxdt_mfu);
  return text +
         "HFU needs the FLOPs of the programs, recomputation included: `trellis simulate`, then "
         "`trellis report`\n";
}

}  // namespace trellis::analysis
