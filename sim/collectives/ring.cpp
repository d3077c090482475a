#include "sim/collectives/patterns.h"

namespace trellis::sim {
namespace {

/// Two members have one way only: both would be the same wire.
bool both_ways(int n) { return n > 2; }

Chunk travelling(Chunk whole, int way, int n) {
  return both_ways(n) ? half_for(whole, way) : whole;
}

std::int64_t travelling_length(const std::vector<Chunk>& pieces, int way, int n) {
  std::int64_t sum = 0;
  for (const Chunk& piece : pieces) sum += travelling(piece, way, n).length;
  return sum;
}

}  // namespace

int ring_rounds(int members) { return members - 1; }

/// In round r, member m passes on what belongs to member m − way · (r + lag).
void emit_ring_round(const Line& line, bool reduce, int round, int printed_round,
                     const StepSink& sink) {
  const int n = line.size();
  const int lag = reduce ? 1 : 0;
  for (int m = 0; m < n; ++m) {
    for (const int way : {1, -1}) {
      if (way == -1 && !both_ways(n)) continue;
      for (const Chunk& whole : line.owned[wrapped(m - way * (round + lag), n)]) {
        const Chunk part = travelling(whole, way, n);
        if (part.length == 0) continue;
        sink({printed_round, line.members[static_cast<std::size_t>(m)],
              line.members[wrapped(m + way, n)], part.begin, part.begin, part.length, reduce,
              false});
      }
    }
  }
}

/// Over all rounds a member passes on every piece but one: its own when it reduces, that of the
/// member it sends to when it gathers.
void add_ring_flows(const Line& line, bool reduce, std::vector<Flow>& flows) {
  const int n = line.size();
  for (const int way : {1, -1}) {
    if (way == -1 && !both_ways(n)) continue;
    std::int64_t all = 0;
    for (const auto& pieces : line.owned) all += travelling_length(pieces, way, n);
    for (int m = 0; m < n && n > 1; ++m) {
      const std::int64_t kept =
          travelling_length(line.owned[wrapped(reduce ? m : m + way, n)], way, n);
      flows.push_back({line.members[static_cast<std::size_t>(m)], line.members[wrapped(m + way, n)],
                       all - kept, reduce, false});
    }
  }
}

}  // namespace trellis::sim
