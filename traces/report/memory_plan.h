#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "traces/report/software_memory.h"

/// Reports whether a run fits, what takes the memory, and what would make it fit (schema
/// trellis.memory_plan/1). Plain C++.
namespace trellis::analysis {

/// The configuration of a memory run; the rest comes from the device.
struct MemoryRunFacts {
  std::string name, instance, precision;
  int nodes = 1, devices = 1, world_size = 1, tp = 1, pp = 1, vpp = 1, dp = 1;
  int micro_batch_size = 1, num_microbatches = 1, sequence_length = 1, steps = 1;
  std::int64_t parameters = 0;
  bool zero1 = false, fsdp = false, sequence_parallel = false;
  std::string recompute;           ///< none, selective, full
  int sequential_move_factor = 1;  ///< ranks of a host that build their weights at the same time
  std::int64_t batch_bytes = 0;    ///< samples that one rank holds in the host's memory
  std::int64_t host_memory_bytes = 0;  ///< of one instance
  int cores_per_chip = 1;              ///< logical ones
  SoftwareFacts software;
};

/// `memory`: trellis.memory/1 of a run on cores of unlimited memory. `headroom_bytes` = capacity −
/// `needed_bytes`. For this trainer (software none, megatron): `needed_bytes` is what the allocator
/// of the worst rank takes from HBM at its peak; `verdict` is "does_not_fit" when an allocator with
/// the core's capacity would have refused something, "tight" when what it leaves is less than the
/// estimate of what the runtime takes in addition, else "fits". For other software (see
/// software_memory.h): `needed_bytes` is the estimate; "does_not_fit" above the capacity, "tight"
/// within the estimate's error. `host.verdict` is of a node's own memory: "does_not_fit" when what
/// the run holds there exceeds it, "tight" when it does with the published share of processes and
/// runtime, else "fits".
[[nodiscard]] nlohmann::json memory_plan(const MemoryRunFacts& facts, const nlohmann::json& memory);

/// For people. `all`: also changes that are illegal or were not enough, with why. REQUIRES: the
/// schema above, with or without "changes".
[[nodiscard]] std::string memory_plan_text(const nlohmann::json& plan, bool all);

}  // namespace trellis::analysis
