#pragma once

#include "sim/collectives/stage.h"

/// The steps of one round of one line, and for the rings, whose steps are many, their sums in
/// closed form.
namespace trellis::sim {

[[nodiscard]] int ring_rounds(int members);
void emit_ring_round(const Line& line, bool reduce, int round, int printed_round,
                     const StepSink& sink);
void add_ring_flows(const Line& line, bool reduce, std::vector<Flow>& flows);

/// REQUIRES: an even number of members.
[[nodiscard]] int kanga_ring_rounds(int members);
void emit_kanga_ring_round(const Line& line, bool reduce, int round, int printed_round,
                           const StepSink& sink);
void add_kanga_ring_flows(const Line& line, bool reduce, std::vector<Flow>& flows);

void emit_direct_round(const Line& line, bool reduce, int printed_round, const StepSink& sink);
void add_direct_flows(const Line& line, bool reduce, std::vector<Flow>& flows);
/// Elements that each member of a line owns.
[[nodiscard]] std::vector<std::int64_t> owned_lengths(const Line& line);

/// REQUIRES: members a power of two.
[[nodiscard]] int hypercube_axes(int members);
void emit_halving_doubling_round(const Line& line, bool reduce, int round, int printed_round,
                                 const StepSink& sink);
void add_halving_doubling_flows(const Line& line, bool reduce, std::vector<Flow>& flows);

/// The half of a piece that travels one way round: +1 to the next member, -1 to the one before.
[[nodiscard]] constexpr Chunk half_for(Chunk whole, int way) {
  return part_of(whole, 2, way == 1 ? 0 : 1);
}

/// `position` on a ring of `size`.
[[nodiscard]] constexpr std::size_t wrapped(int position, int size) {
  return static_cast<std::size_t>(((position % size) + size) % size);
}

}  // namespace trellis::sim
