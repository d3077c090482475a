#include <bit>

#include "base/check.h"
#include "sim/collectives/patterns.h"

namespace trellis::sim {

void emit_direct_round(const Line& line, bool reduce, int printed_round, const StepSink& sink) {
  for (std::size_t from = 0; from < line.members.size(); ++from) {
    for (std::size_t to = 0; to < line.members.size(); ++to) {
      if (from == to) continue;
      for (const Chunk& piece : line.owned[reduce ? to : from]) {
        if (piece.length > 0) sink({printed_round, line.members[from], line.members[to], piece.begin, piece.begin, piece.length, reduce, false});
      }
    }
  }
}

int hypercube_axes(int members) {
  TRELLIS_CHECK(std::has_single_bit(static_cast<unsigned>(members)), "halving and doubling need a power of two of members");
  return std::countr_zero(static_cast<unsigned>(members));
}

/// Part j of every piece takes the axes in the order j, j+1, …; doubling sends along the t-th of them what was gathered along the earlier
/// ones. Halving is the same backwards: what the partner's side will gather is summed there.
void emit_halving_doubling_round(const Line& line, bool reduce, int round, int printed_round, const StepSink& sink) {
  const int n = line.size();
  const int axes = hypercube_axes(n);
  const int t = reduce ? axes - 1 - round : round;
  for (int part = 0; part < axes; ++part) {
    unsigned gathered = 0;
    for (int earlier = 0; earlier < t; ++earlier) gathered |= 1u << ((part + earlier) % axes);
    for (int from = 0; from < n; ++from) {
      const int to = from ^ (1 << ((part + t) % axes));
      const int side = reduce ? to : from;
      for (int owner = 0; owner < n; ++owner) {
        if ((static_cast<unsigned>(owner ^ side) & ~gathered) != 0) continue;
        for (const Chunk& whole : line.owned[static_cast<std::size_t>(owner)]) {
          const Chunk piece = part_of(whole, axes, part);
          if (piece.length == 0) continue;
          sink({printed_round, line.members[static_cast<std::size_t>(from)], line.members[static_cast<std::size_t>(to)], piece.begin, piece.begin, piece.length, reduce, false});
        }
      }
    }
  }
}

}  // namespace trellis::sim
