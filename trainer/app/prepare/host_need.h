#pragma once

#include <cstdint>
#include <string>

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// Bytes of host memory that training takes at least, all ranks of the process together. The first
/// three are what is allocated before the first step; activations are those that no recomputation
/// saves, of the ranks that compute at the same time.
struct HostNeed {
  std::int64_t weights = 0, gradients = 0, optimizer_states = 0, activations = 0;
  [[nodiscard]] std::int64_t total() const {
    return weights + gradients + optimizer_states + activations;
  }
};

/// `ranks_at_once`: ranks that may run at the same time on the host.
[[nodiscard]] HostNeed host_need(const RunConfig& config, int ranks_at_once);

/// Throws Error (kDoesNotFit) with both numbers when `available_bytes`, which `limit` gives, are
/// fewer.
void check_host_memory(const RunConfig& config, int ranks_at_once, std::int64_t available_bytes,
                       const std::string& limit);

/// The same for a model that is only evaluated: its weights.
void check_host_memory_of_weights(const RunConfig& config, std::int64_t available_bytes,
                                  const std::string& limit);

}  // namespace trellis::trainer
