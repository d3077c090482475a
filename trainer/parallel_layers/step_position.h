#pragma once

#include <cstdint>

namespace trellis::trainer {

/// Where training is: set by whoever runs the step, read by what draws random numbers. Counted over
/// the whole run, not per rank, so that every layout finds the same numbers.
struct StepPosition {
  std::int64_t step = 0;  ///< optimizer steps done
  std::int64_t microbatch =
      0;  ///< in the global batch's order: with data parallelism, m · DP + data-parallel rank
  bool adapters = true;  ///< false: LoRA's adapters are left out, as in DPO's reference model
  bool training = true;  ///< false in an evaluation: dropout lets everything through
};

}  // namespace trellis::trainer
