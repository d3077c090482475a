#pragma once

#include <cstdint>

#include "trainer/parallel_layers/parameter.h"

namespace trellis::runtime {
class RankContext;
}

namespace trellis::trainer {

struct RunConfig;

/// Throws ConfigError when no rank holds a copy of another one's weights.
void refuse_without_replicas(const RunConfig& config);

/// Collective: ranks that hold copies of a weight, over data and context parallelism, must hold the
/// same bits. A hash of each weight is compared; it costs a copy of all weights to the host. Throws
/// Error (kParity) that names the step, each weight and the ranks whose bits are not those of most
/// copies: memory or a core changed them, because equal operations give equal bits.
void check_replicas(const ParameterList& parameters, const ParallelState& parallel,
                    const runtime::RankContext& rank, std::int64_t step);

}  // namespace trellis::trainer
