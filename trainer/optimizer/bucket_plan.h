#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/config/run_config.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// How many bytes one gradient communication takes at most. NxD's values (nxdt-features §3.3).
struct BucketCaps {
  std::int64_t reduce_scatter =
      130'000'000;  ///< ZeRO-1: input of one reduce-scatter; also, times 1/DP, of one all-gather
  std::int64_t all_reduce = 512'000'000;  ///< without ZeRO-1
};

/// The caps of a run. `bucket_size_collectives` is that of coalesced all-reduces: a ZeRO-1 bucket
/// above 140 MB gave not-a-numbers on Neuron, and all example files say 1024. The variables
/// ALL_GATHER_REDUCE_SCATTER_BUCKET_CAP_MB and ALLREDUCE_BUCKET_CAP_MB go first. Throws ConfigError
/// for a variable that is no number above 0.
[[nodiscard]] BucketCaps bucket_caps(const RunConfig& config);

/// Properties that all parameters of a bucket share.
struct BucketKind {
  at::ScalarType dtype = at::kFloat;
  bool weight_decay = false, tensor_model_parallel = false, sequence_parallel_enabled = false,
       tied = false, shared = false, expert = false;
  std::optional<OptimizerGroup> group = {};
  int unit = -1;  ///< of fully sharded data parallelism
  auto operator<=>(const BucketKind&) const = default;
};
[[nodiscard]] BucketKind kind_of(const Parameter& parameter);

/// Splits the parameters into buckets of one kind each, last parameter first: the order in which
/// backward gives their gradients. A bucket is closed where the next gradient, padded for `shards`
/// ranks as it travels (those of experts for `expert_shards`; 0: for as many), would not fit; a
/// gradient that is larger than the cap is alone.
[[nodiscard]] std::vector<std::vector<Parameter*>> plan_buckets(ParameterList& parameters,
                                                                at::ScalarType grad_dtype,
                                                                std::int64_t cap_bytes, int shards,
                                                                int expert_shards = 0);

}  // namespace trellis::trainer
