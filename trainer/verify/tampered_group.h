#pragma once

#include <functional>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {

/// Errors of a group's communication. A communication that is left out leaves each rank with what
/// it has.
struct Tampering {
  std::function<bool(const at::Tensor&)> leaves_out_sum =
      {};  ///< all-reduce or reduce-scatter of this tensor (an all-reduce that is no sum is kept)
  bool leaves_out_gather = false;  ///< all-gather: only the own part arrives
  std::function<double(const at::Tensor&)> scales_sum =
      {};                          ///< the factor on a sum's result; empty: 1
  bool misplaces_returns = false;  ///< every second all-to-all: its rows arrive one place too late
  bool receives_late =
      false;  ///< each receive gives what the one before it was sent; the first gives zeros
};

/// The same axis with a group that communicates wrongly; groups of one are left alone.
[[nodiscard]] ParallelGroup tampered(const ParallelGroup& group, Tampering tampering);

}  // namespace trellis::trainer
