#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sim/config/system_config.h"
#include "trainer/config/run_config.h"

namespace trellis::analysis {

/// A throughput that someone measured has this meaning for a configuration. Nothing is simulated.
struct MeasuredRate {
  std::string name, machine;  ///< "llama3_8b", "32 × trn1.32xlarge"
  double sequences_per_s = 0, tokens_per_s = 0, step_s = 0;
  double model_flops = 0;       ///< of a step
  double peak_flops_per_s = 0;  ///< of all ranks, dense bf16
  [[nodiscard]] double mfu() const { return model_flops / (step_s * peak_flops_per_s); }
  /// As NxDT's llama_perf_estimate.py counts: look-up and softmax too, attention over the whole
  /// sequence, 190 and 667 TFLOPS a chip of Trn1 and Trn2, all chips of the nodes. None: the
  /// model is no Llama, or the chip is another one.
  std::optional<double> nxdt_mfu;
};

/// Throws ConfigError when the throughput is more than the cores' peak allows.
[[nodiscard]] MeasuredRate measured_rate(const trainer::RunConfig& config,
                                         const sim::SystemConfig& system, double sequences_per_s);

/// Schema trellis.measured_rate/1.
[[nodiscard]] nlohmann::json measured_rate_json(const MeasuredRate& rate);
[[nodiscard]] std::string measured_rate_text(const MeasuredRate& rate);

}  // namespace trellis::analysis
