#include "base/check.h"
#include "sim/collectives/patterns.h"

// Positions of the ring are pairs (a, b) of members that lie side by side. What travels to the next
// pair is carried by a, what travels to the previous one by b; `a` and `b` below represent carrier
// and buddy of the current way.
namespace trellis::sim {
namespace {

class Pairs {
 public:
  explicit Pairs(const Line& line) : line_(line), count_(line.size() / 2) {
    TRELLIS_CHECK(line.size() % 2 == 0, "a KangaRing needs pairs");
  }

  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] int carrier(int pair, int way) const { return member(pair, way == 1 ? 0 : 1); }
  [[nodiscard]] int buddy(int pair, int way) const { return member(pair, way == 1 ? 1 : 0); }
  [[nodiscard]] const std::vector<Chunk>& pieces(int pair, int which) const {
    return line_.owned[wrapped(pair, count_) * 2 + static_cast<std::size_t>(which)];
  }
  /// Elements of one member's pieces that travel one way; length(): of both members' pieces.
  [[nodiscard]] std::int64_t half(int pair, int which, int way) const {
    std::int64_t sum = 0;
    for (const Chunk& piece : pieces(pair, which)) sum += half_for(piece, way).length;
    return sum;
  }
  [[nodiscard]] std::int64_t length(int pair, int way) const {
    return half(pair, 0, way) + half(pair, 1, way);
  }
  /// Steps for the way's halves of all pieces of `pair`.
  void send(int pair, int way, PlanStep step, const StepSink& sink) const {
    for (const int which : {0, 1}) send_pieces(pieces(pair, which), way, step, sink);
  }
  static void send_pieces(const std::vector<Chunk>& pieces, int way, PlanStep step,
                          const StepSink& sink) {
    for (const Chunk& piece : pieces) {
      const Chunk part = half_for(piece, way);
      step.source = step.target = part.begin;
      step.length = part.length;
      if (part.length > 0) sink(step);
    }
  }

 private:
  [[nodiscard]] int member(int pair, int which) const {
    return line_.members[wrapped(pair, count_) * 2 + static_cast<std::size_t>(which)];
  }

  const Line& line_;
  const int count_;
};

PlanStep message(int round, int from, int to, bool reduce, bool fused) {
  return {round, from, to, 0, 0, 0, reduce, fused};
}

/// Round 0: the pair shares its own pieces. Round r: the carrier sends on what came in the round
/// before and copies it to its buddy.
void emit_gather(const Pairs& pairs, int round, int printed, const StepSink& sink) {
  for (int p = 0; p < pairs.count(); ++p) {
    for (const int way : {1, -1}) {
      const int a = pairs.carrier(p, way);
      const int b = pairs.buddy(p, way);
      if (round == 0) {
        const PlanStep step = message(printed, a, b, false, false);
        for (const int half : {1, -1})
          Pairs::send_pieces(pairs.pieces(p, way == 1 ? 0 : 1), half, step, sink);
        continue;
      }
      const int origin = p - way * (round - 1);
      if (round < pairs.count())
        pairs.send(origin, way, message(printed, a, pairs.carrier(p + way, way), false, false),
                   sink);
      if (round > 1) pairs.send(origin, way, message(printed, a, b, false, true), sink);
    }
  }
}

/// Round 0: buddies add theirs to what their carrier sends first. Round r: sums move on and meet
/// the next buddy's contribution. Last round: each member gets from its buddy the half that the
/// buddy carried.
void emit_scatter(const Pairs& pairs, int round, int printed, const StepSink& sink) {
  for (int p = 0; p < pairs.count(); ++p) {
    for (const int way : {1, -1}) {
      const int a = pairs.carrier(p, way);
      const int b = pairs.buddy(p, way);
      if (round == pairs.count()) {
        Pairs::send_pieces(pairs.pieces(p, way == 1 ? 1 : 0), way,
                           message(printed, a, b, false, false), sink);
        continue;
      }
      // Pieces of pair q end their way at q: q was sent first by the pair after it.
      if (round > 0)
        pairs.send(p - way * round, way,
                   message(printed, a, pairs.carrier(p + way, way), true, false), sink);
      pairs.send(p - way * (round + 1), way, message(printed, b, a, true, round > 0), sink);
    }
  }
}

}  // namespace

int kanga_ring_rounds(int members) { return members / 2 + 1; }

void emit_kanga_ring_round(const Line& line, bool reduce, int round, int printed_round,
                           const StepSink& sink) {
  const Pairs pairs(line);
  if (reduce) {
    emit_scatter(pairs, round, printed_round, sink);
  } else {
    emit_gather(pairs, round, printed_round, sink);
  }
}

void add_kanga_ring_flows(const Line& line, bool reduce, std::vector<Flow>& flows) {
  const Pairs pairs(line);
  for (const int way : {1, -1}) {
    std::int64_t all = 0;
    for (int p = 0; p < pairs.count(); ++p) all += pairs.length(p, way);
    for (int p = 0; p < pairs.count(); ++p) {
      const int a = pairs.carrier(p, way);
      const int b = pairs.buddy(p, way);
      const int next = pairs.carrier(p + way, way);
      if (reduce) {
        const std::int64_t first = pairs.length(p - way, way);
        flows.push_back({a, next, all - pairs.length(p, way), true, false});
        flows.push_back({b, a, first, true, false});
        flows.push_back({b, a, all - first, true, true});
        flows.push_back({a, b, pairs.half(p, way == 1 ? 1 : 0, way), false, false});
      } else {
        flows.push_back({a, b,
                         pairs.half(p, way == 1 ? 0 : 1, 1) + pairs.half(p, way == 1 ? 0 : 1, -1),
                         false, false});
        flows.push_back({a, next, all - pairs.length(p + way, way), false, false});
        flows.push_back({a, b, all - pairs.length(p, way), false, true});
      }
    }
  }
}

}  // namespace trellis::sim
