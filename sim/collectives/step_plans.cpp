#include "sim/collectives/step_plans.h"

#include <algorithm>

#include "base/check.h"
#include "sim/collectives/chunk.h"

namespace trellis::sim {
namespace {

using Steps = std::vector<PlanStep>;

// Enough pieces that the chain of a broadcast is busy on all its links most of the time.
constexpr int kBroadcastPieces = 16;

/// Member 0 → 1 → … → n-1, in pieces that follow one another.
Steps broadcast_chain(int members, std::int64_t elements) {
  Steps steps;
  const int pieces = static_cast<int>(std::min<std::int64_t>(kBroadcastPieces, elements));
  for (int round = 0; pieces > 0 && round < pieces + members - 2; ++round) {
    for (int member = 0; member + 1 < members; ++member) {
      const int piece = round - member;
      if (piece < 0 || piece >= pieces) continue;
      const Chunk range = chunk_range(elements, pieces, piece);
      steps.push_back(
          {round, member, member + 1, range.begin, range.begin, range.length, false, false});
    }
  }
  return steps;
}

Steps broadcast_mesh(int members, std::int64_t elements) {
  Steps steps;
  for (int to = 1; to < members && elements > 0; ++to)
    steps.push_back({0, 0, to, 0, 0, elements, false, false});
  return steps;
}

/// Round r pairs i with (r − i) mod n: every pair meets once, and both directions of a pair run
/// together. Mesh: all at once.
Steps all_to_all(int members, std::int64_t elements, bool at_once) {
  TRELLIS_CHECK(elements % members == 0,
                "an all-to-all sends one block of the same size to each member");
  Steps steps;
  const std::int64_t block = elements / members;
  for (int round = 0; round < members && block > 0; ++round) {
    for (int from = 0; from < members; ++from) {
      const int to = (round - from + members) % members;
      if (to != from)
        steps.push_back(
            {at_once ? 0 : round, from, to, to * block, from * block, block, false, false});
    }
  }
  return steps;
}

Steps everybody_to_everybody(int members, std::int64_t elements) {
  Steps steps;
  for (int from = 0; from < members && elements > 0; ++from) {
    for (int to = 0; to < members; ++to) {
      if (from != to) steps.push_back({0, from, to, 0, 0, elements, true, false});
    }
  }
  return steps;
}

Steps to_the_next(int members, std::int64_t elements) {
  Steps steps;
  for (int from = 0; from < members && elements > 0; ++from)
    steps.push_back({0, from, (from + 1) % members, 0, 0, elements, false, false});
  return steps;
}

}  // namespace

Steps steps_of(CollectiveKind kind, Algorithm algorithm, int members, std::int64_t elements) {
  const bool mesh = algorithm == Algorithm::kMesh;
  switch (kind) {
    case CollectiveKind::kAllToAll: return all_to_all(members, elements, mesh);
    case CollectiveKind::kBroadcast:
      return mesh ? broadcast_mesh(members, elements) : broadcast_chain(members, elements);
    case CollectiveKind::kPermute: return to_the_next(members, elements);
    case CollectiveKind::kSendRecv:
      TRELLIS_CHECK(members == 2, "a transfer has two members");
      return elements > 0 ? Steps{{0, 0, 1, 0, 0, elements, false, false}} : Steps{};
    case CollectiveKind::kAllReduce: return everybody_to_everybody(members, elements);
    default: break;
  }
  TRELLIS_CHECK(false, "gathers and scatters are made of stages");
  return {};
}

}  // namespace trellis::sim
