#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "traces/report/calibration.h"
#include "traces/report/expert_load.h"
#include "traces/report/software_memory.h"
#include "traces/report/validity.h"

/// The report of a run, as one JSON document (schema trellis.run_report/1) and as text for people.
/// Plain C++. Equal runs give equal bytes.
namespace trellis::analysis {

/// The numbers of a run that do not come from the device.
struct RunFacts {
  std::string verb;  ///< "train" or "simulate"
  std::string name;
  std::string device;  ///< "neuron" or "cpu"
  std::string instance;
  int nodes = 1;
  int world_size = 1, tp = 1, pp = 1, dp = 1, num_microbatches = 1;
  std::int64_t parameters = 0;
  std::int64_t tokens_per_step = 0;
  double model_flops_per_step = 0;
  std::string precision;
  std::int64_t steps = 0, max_steps = 0;
  std::optional<double> first_loss, last_loss, test_loss;
  bool interrupted = false;
  std::optional<Validity> validity;        ///< of the simulated step
  std::optional<Calibration> calibration;  ///< a user's; applied at `place`
  StepPlace place;
  std::map<std::string, std::string>
      hardware;  ///< every number of the emulated machine, with its unit; empty: none is emulated
  int attempt = 1;                ///< above 1: the run failed before and went on from a checkpoint
  std::vector<std::string> slow;  ///< its parts that are slower than their kind: "core:3=1.3"
  SoftwareFacts software;
  std::vector<ExpertLoad> routing;  ///< of the last step, by layer; empty: no mixture of experts
};

/// Costs of a run on the host. They differ between equal runs, so they are in a separate file:
/// host.json.
struct HostFacts {
  struct Step {
    std::int64_t step = 0;
    double seconds = 0, sequences_per_s = 0, sequences_per_s_peak = 0;
    double data_wait_s = 0;  ///< of rank 0, for its samples; 0 in shape-only mode, which reads none
  };
  double wall_s = 0;
  double data_wait_s = 0;  ///< of all steps
  std::int64_t bytes_before = 0,
               bytes_peak =
                   0;  ///< resident memory of the process, before the first rank and at most
  std::vector<Step> steps;
};
/// Schema trellis.host/1.
[[nodiscard]] nlohmann::json host_report(const HostFacts& host);

/// Simulated rates of one step.
struct SimulatedRates {
  double step_time_ms = 0;
  double tokens_per_s = 0;
  double mfu = 0;  ///< model FLOPs / (step time × cores × bf16 peak of a core)
};
[[nodiscard]] SimulatedRates simulated_rates(const nlohmann::json& step_report,
                                             const RunFacts& facts);

/// `step_report`, `memory`, `portability`: the device's last documents; null on a device that times
/// itself. The report keeps the part of `portability` that the hardware does not have.
/// `checkpoints`: see checkpoint_report.h; null: none are saved. "memory" also has what
/// `facts.software` takes, where it is known: software_memory.h.
[[nodiscard]] nlohmann::json run_report(const RunFacts& facts, const nlohmann::json& step_report,
                                        const nlohmann::json& memory,
                                        const nlohmann::json& portability,
                                        const nlohmann::json& checkpoints);

/// The final table: facts, where the simulated step went per rank, memory per rank, coverage. Takes
/// a trellis.run_report/1 document; throws ConfigError when it is something else.
[[nodiscard]] std::string print_run_report(const nlohmann::json& report);

}  // namespace trellis::analysis
