#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "runtime/ranks/world.h"
#include "trainer/parallel_layers/parallel_state.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer::testing_support {

/// A tensor-parallel layout of one layer.
struct Setup {
  int tp = 1;
  bool sequence_parallel = false;
  int kv_size_multiplier = 1;
  ReplicaOrder order = ReplicaOrder::kAdjacent;
};

inline std::string name_of(const Setup& setup) {
  return "TP" + std::to_string(setup.tp) + (setup.sequence_parallel ? "_SP" : "") +
         (setup.kv_size_multiplier > 1 ? "_KV" + std::to_string(setup.kv_size_multiplier) : "") +
         (setup.order == ReplicaOrder::kInterleaved ? "_interleaved" : "");
}

/// One rank's layer context in fp64, with its own parameter list.
struct Rank {
  explicit Rank(ParallelState groups, bool sequence_parallel = false) : state(std::move(groups)) {
    context.parallel = &state;
    context.parameters = &parameters;
    context.backward = std::make_shared<BackwardLayer>();
    context.dtype = context.reduce_dtype = at::kDouble;
    context.sequence_parallel = sequence_parallel;
    context.seed = 4;
  }
  Rank(const Rank&) = delete;
  [[nodiscard]] at::Tensor own(const at::Tensor& full, int dim) const {
    return shard_of(full, dim, 1, context.tp());
  }
  /// The part that a layer outside the tensor-parallel region sees: its part of the sequence, or
  /// everything.
  [[nodiscard]] at::Tensor region(const at::Tensor& full) const {
    return context.sequence_parallel ? own(full, 0).contiguous() : full;
  }
  [[nodiscard]] Parameter& parameter(const std::string& name) {
    for (Parameter& candidate : parameters) {
      if (candidate.name == name) return candidate;
    }
    TORCH_CHECK(false, "no parameter ", name);
  }
  /// This rank's part of an un-sharded gradient of `parameter`.
  [[nodiscard]] at::Tensor own(const at::Tensor& full, const Parameter& parameter) const {
    return shard_of(full, parameter.partition, context.tp().rank, context.tp().size);
  }
  ParallelState state;
  ParameterList parameters;
  ModuleContext context;
};

inline at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble);
}

inline bool close(const at::Tensor& got, const at::Tensor& expected, double tolerance = 1e-12) {
  return got.sizes() == expected.sizes() && at::allclose(got, expected, tolerance, tolerance);
}

/// Runs `body` on every rank of the layout, on the devices of `world`.
inline void run(const Setup& setup, runtime::WorldOptions world,
                const std::function<void(Rank&)>& body) {
  world.world_size = setup.tp;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    Rank local(ParallelState::initialize_model_parallel(
                   rank, {.tensor_model_parallel_size = setup.tp,
                          .kv_size_multiplier = setup.kv_size_multiplier,
                          .kv_replica_order = setup.order}),
               setup.sequence_parallel);
    local.context.device = rank.device();
    local.context.shape_only = rank.shape_only();
    body(local);
  });
}
inline void run(const Setup& setup, const std::function<void(Rank&)>& body) {
  run(setup, {}, body);
}

}  // namespace trellis::trainer::testing_support
