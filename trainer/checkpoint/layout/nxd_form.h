#pragma once

#include "trainer/checkpoint/state/live_state.h"

namespace trellis::checkpoint {

/// Weights and states of a rank whose experts are as NxD's files have them: three dimensions
/// (formats/nxd/stacked_experts.h), its names, and with ZeRO-1 whole experts of a state, of which a
/// rank has ⌈experts / ranks that hold the same ones⌉, the last ones padding. The tensors share
/// memory with those of `live`, except for states of ZeRO-1, which have no values.
///
///   three experts of a rank, f/TP = 4, two ranks of ZeRO-1:  exp_avg [2, h, gate 4 | up 4] each
[[nodiscard]] LiveState in_nxd_form(LiveState live, const trainer::ParameterList& parameters,
                                    const RankPlace& place);

}  // namespace trellis::checkpoint
