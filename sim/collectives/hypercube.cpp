#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "base/check.h"
#include "sim/collectives/patterns.h"

namespace trellis::sim {

void emit_direct_round(const Line& line, bool reduce, int printed_round, const StepSink& sink) {
  for (std::size_t from = 0; from < line.members.size(); ++from) {
    for (std::size_t to = 0; to < line.members.size(); ++to) {
      if (from == to) continue;
      for (const Chunk& piece : line.owned[reduce ? to : from]) {
        if (piece.length > 0)
          sink({printed_round, line.members[from], line.members[to], piece.begin, piece.begin,
                piece.length, reduce, false});
      }
    }
  }
}

std::vector<std::int64_t> owned_lengths(const Line& line) {
  std::vector<std::int64_t> lengths;
  for (const auto& pieces : line.owned) {
    lengths.push_back(0);
    for (const Chunk& piece : pieces) lengths.back() += piece.length;
  }
  return lengths;
}

void add_direct_flows(const Line& line, bool reduce, std::vector<Flow>& flows) {
  const std::vector<std::int64_t> owned = owned_lengths(line);
  for (std::size_t from = 0; from < owned.size(); ++from) {
    for (std::size_t to = 0; to < owned.size(); ++to) {
      if (from != to)
        flows.push_back(
            {line.members[from], line.members[to], owned[reduce ? to : from], reduce, false});
    }
  }
}

int hypercube_axes(int members) {
  TRELLIS_CHECK(std::has_single_bit(static_cast<unsigned>(members)),
                "halving and doubling need a power of two of members");
  return std::countr_zero(static_cast<unsigned>(members));
}

/// Part j of every piece takes the axes in the order j, j+1, …; doubling sends along the t-th of
/// them what was gathered along the earlier ones. Halving is the same backwards: what the partner's
/// side will gather is summed there.
void emit_halving_doubling_round(const Line& line, bool reduce, int round, int printed_round,
                                 const StepSink& sink) {
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
          sink({printed_round, line.members[static_cast<std::size_t>(from)],
                line.members[static_cast<std::size_t>(to)], piece.begin, piece.begin, piece.length,
                reduce, false});
        }
      }
    }
  }
}

/// The amount that a side has gathered doubles with each axis, so its length follows from those of
/// two sides with one axis less.
void add_halving_doubling_flows(const Line& line, bool reduce, std::vector<Flow>& flows) {
  const auto n = line.members.size();
  const int axes = hypercube_axes(line.size());
  std::vector<std::vector<std::int64_t>> sent(static_cast<std::size_t>(axes),
                                              std::vector<std::int64_t>(n));  // by axis, by sender
  std::vector<std::int64_t> gathered(n), both(n);
  for (int part = 0; part < axes; ++part) {
    std::fill(gathered.begin(), gathered.end(), 0);
    std::int64_t of_length = 0, length = 0;  // most pieces are equally long
    for (std::size_t owner = 0; owner < n; ++owner) {
      for (const Chunk& whole : line.owned[owner]) {
        if (std::exchange(of_length, whole.length) != whole.length)
          length = part_of(whole, axes, part).length;
        gathered[owner] += length;
      }
    }
    const bool even = std::ranges::adjacent_find(gathered, std::not_equal_to()) == gathered.end();
    for (int t = 0; t < axes; ++t) {
      const int axis = (part + t) % axes;
      if (even) {
        for (std::int64_t& each : sent[static_cast<std::size_t>(axis)])
          each += gathered.front() << t;
        continue;
      }
      const std::size_t partner = std::size_t{1} << axis;
      for (std::size_t from = 0; from < n; ++from) {
        sent[static_cast<std::size_t>(axis)][from] += gathered[reduce ? from ^ partner : from];
        both[from] = gathered[from] + gathered[from ^ partner];
      }
      gathered.swap(both);
    }
  }
  const std::size_t begin = flows.size(), all = begin + static_cast<std::size_t>(axes) * n;
  if (all > flows.capacity()) flows.reserve(std::max(all, 2 * flows.capacity()));
  flows.resize(all);
  auto flow = flows.begin() + static_cast<std::ptrdiff_t>(begin);
  for (int axis = 0; axis < axes; ++axis) {
    for (std::size_t from = 0; from < n; ++from) {
      *flow++ = {line.members[from], line.members[from ^ (std::size_t{1} << axis)],
                 sent[static_cast<std::size_t>(axis)][from], reduce, false};
    }
  }
}

}  // namespace trellis::sim
