#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/layout.h"

/// `trellis sweep`, whose names are its own: `trellis collectives` sweeps too. Here: what may
/// differ between two runs of one model on one kind of machine.
namespace trellis::analysis {

/// One way to run a configuration. Legal or not is for its validation to say.
struct Candidate : trainer::Layout {
  int nodes = 1;
  int micro_batch_size = 1;
  auto operator<=>(const Candidate&) const = default;
};

/// "TP8 PP2 VPP2 DP2 CP2 EP4 MBS1 SP ZeRO1 KV2 full" (FSDP in place of ZeRO1): factors of one and
/// what is off are left out, the micro-batch is always there.
[[nodiscard]] std::string to_string(const Candidate& candidate);

/// Names of the axes that can be restricted, in the order of the enumeration: tp, pp, vpp, dp, cp,
/// ep, mbs, sp, zero1, fsdp, kv, recompute.
[[nodiscard]] const std::vector<std::string>& axis_names();
/// The candidate's value on an axis, as it is written in --only.
[[nodiscard]] std::string value_on(const Candidate& candidate, std::string_view axis);
/// Axis → the values that it may take; an axis that is not here is free.
using AxisValues = std::map<std::string, std::vector<std::string>>;
/// "tp=4,8", added to `only`. Throws ConfigError: no such axis (with the nearest), twice, no
/// values, a value that the axis cannot have.
void restrict_axis(AxisValues& only, const std::string& text);

struct Space {
  std::vector<int> nodes = {1};  ///< each of them
  int ranks_per_node = 1;
  int cores_per_node = 1;  ///< logical ones of an instance, which is paid for as a whole
  std::int64_t global_batch_size = 1;
  int num_layers = 1;
  bool ring_attention = false;  ///< without it no rule allows CP
  int num_experts = 0;          ///< 0: no mixture, and no EP
  bool fsdp = false;            ///< what candidates have when `only` says nothing of the axis
  AxisValues only;
};

/// Each of these once, in this order: nodes; every product TP · PP · CP · DP of the ranks (CP with
/// ring attention); EP that divides DP · CP and the experts; VPP up to the layers of a rank (PP >
/// 1); micro-batches that divide the global batch's share of a replica (1
/// where it has none); sequence parallelism (TP > 1); ZeRO-1; fully sharded (ZeRO-1,
/// PP 1, more than one replica) where `fsdp` or `only` asks for it; the numbers of copies of
/// key/value heads that divide TP; recompute. A combination that is not here is legal for no
/// configuration.
[[nodiscard]] std::vector<Candidate> enumerate(const Space& space);

/// `key=value` overrides that give a configuration this layout. Stages are cut evenly; the list of
/// recomputed modules stays with `selective` only.
[[nodiscard]] std::vector<std::string> overrides_of(const Candidate& candidate, int ranks_per_node,
                                                    std::int64_t global_batch_size);
/// A key that these overrides decide, whatever the file or the user says.
[[nodiscard]] bool is_axis_key(const std::string& key);

}  // namespace trellis::analysis
