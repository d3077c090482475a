#pragma once

#include <array>
#include <utility>

namespace trellis::analysis {

/// The parts that a step's time adds up from, in the order in which they are shown: key in
/// report.json (picoseconds), title.
inline constexpr std::array<std::pair<const char*, const char*>, 14> kStepParts{
    {{"matmul_ps", "matmul"},
     {"other_compute_ps", "other compute"},
     {"exposed_tp_ps", "TP comm"},
     {"exposed_pp_ps", "PP comm"},
     {"exposed_dp_ps", "DP comm"},
     {"exposed_cp_ps", "CP comm"},
     {"exposed_ep_ps", "EP comm"},
     {"bubble_ps", "bubble"},
     {"optimizer_ps", "optimizer"},
     {"data_ps", "data"},
     {"launch_ps", "launch"},
     {"host_ps", "waiting for the host"},
     {"multi_node_ps", "multi-node"},
     {"other_ps", "other"}}};

}  // namespace trellis::analysis
