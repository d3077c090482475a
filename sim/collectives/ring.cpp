#include "sim/collectives/ring.h"

#include <algorithm>

namespace trellis::sim {
namespace {

/// `way` +1: to the next member, -1: to the one before.
Chunk half_for(Chunk whole, int way, bool both_ways) {
  if (!both_ways) return whole;
  const std::int64_t half = (whole.length + 1) / 2;
  return way == 1 ? Chunk{whole.begin, half} : Chunk{whole.begin + half, whole.length - half};
}

/// In round r, member m passes on what belongs to member m − way · (r + lag).
void append_ring(CommPlan& plan, const Ring& ring, int first_round, int lag, bool reduce) {
  const int n = static_cast<int>(ring.members.size());
  const auto wrap = [n](int position) { return static_cast<std::size_t>(((position % n) + n) % n); };
  const bool both_ways = n > 2;
  for (int round = 0; round < n - 1; ++round) {
    for (int m = 0; m < n; ++m) {
      for (const int way : {1, -1}) {
        if (way == -1 && !both_ways) continue;
        for (const Chunk& whole : ring.owned[wrap(m - way * (round + lag))]) {
          const Chunk part = half_for(whole, way, both_ways);
          if (part.length == 0) continue;
          plan.steps.push_back({first_round + round, ring.members[static_cast<std::size_t>(m)], ring.members[wrap(m + way)], part.begin, part.begin, part.length, reduce});
        }
      }
    }
  }
}

}  // namespace

Chunk chunk_range(std::int64_t elements, int parts, int index) {
  const std::int64_t base = elements / parts;
  const std::int64_t longer = elements % parts;
  return {index * base + std::min<std::int64_t>(index, longer), base + (index < longer ? 1 : 0)};
}

void append_reduce_scatter(CommPlan& plan, const Ring& ring, int first_round) { append_ring(plan, ring, first_round, 1, true); }

void append_all_gather(CommPlan& plan, const Ring& ring, int first_round) { append_ring(plan, ring, first_round, 0, false); }

}  // namespace trellis::sim
