#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/collectives/chunk.h"
#include "sim/collectives/plan.h"

namespace trellis::sim {

/// Members that exchange with each other in one stage, in the pattern's order, and the pieces of
/// the buffer that each of them owns.
struct Line {
  std::vector<int> members;
  std::vector<std::vector<Chunk>> owned;  ///< by position in `members`
  /// Other lines, of members that come so many later and own the same pieces, position by position:
  /// 1,024 nodes exchange inside as the first of them does.
  std::vector<int> alike = {};
  [[nodiscard]] int size() const { return static_cast<int>(members.size()); }
};

/// The shapes of which all-gathers and reduce-scatters are made; every line of a stage has the same
/// one.
enum class Pattern : std::uint8_t {
  kRing,  ///< to the next and to the previous member; each piece is cut in two, one half per way
          ///< (two members: one way only)
  kKangaRing,  ///< as kRing over pairs of members; one of the pair carries a way, and passes each
               ///< piece to its buddy as it sends it on
  kDirect,     ///< everybody to everybody, one round
  kHalvingDoubling,  ///< members as a hypercube; each piece is cut in as many parts as there are
                     ///< axes, each part takes them in another order
  kSteps,            ///< none of these: `steps` says it all
};

/// One stage of a collective in compact form. Gather: before, each member of a line holds what it
/// owns; after, all hold all. Reduce: before, all hold all; after, each member holds the sum of
/// what it owns.
struct PlanStage {
  Pattern pattern = Pattern::kRing;
  bool reduce = false;
  /// The data go through this stage and its pipelined neighbours slice by slice, so that their
  /// resources work at the same time.
  bool pipelined = false;
  int issuers =
      1;  ///< kDirect: members of a chip that share the work of sending to the other chips
  std::vector<Line> lines;
  std::vector<PlanStep> steps;  ///< kSteps
  int channels = 0;             ///< of a member; a ring takes one for each way. 0: no limit
  bool all_ready = false;  ///< begins when every member of a line has arrived: each writes to all
};

/// A collective in compact form: a ring of 1,024 members is a few numbers here and two million
/// steps when it is written out.
struct PlanOutline {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int members = 1;
  std::int64_t elements = 0;
  bool second_buffer = false;
  std::vector<PlanStage> stages;
};

/// All that one member sends to another during a stage.
struct Flow {
  int from = 0, to = 0;
  std::int64_t elements = 0;
  bool reduce = false;
  bool fused = false;
  auto operator<=>(const Flow&) const = default;
};

/// Everybody to everybody, of too many members for a flow per pair: each sends what it owns to all
/// others; reduce: to each what that one owns.
struct DirectLine {
  std::vector<int> members;
  std::vector<std::int64_t> owned;  ///< elements, by member
  bool reduce = false;
};
inline constexpr int kMaxWrittenDirect = 64;  ///< members; more are DirectLines

/// The load of a stage on the machine, without its steps.
struct StageTraffic {
  int rounds = 0;
  int messages = 0;       ///< that the busiest member issues per round, one after the other
  bool exchange = false;  ///< partners agree on each round before they start it
  /// Elements that a member reduces when the data of their round have arrived: all of a round whose
  /// result the next one sends on, else those of the last round.
  std::int64_t reduced_last = 0;
  bool all_ready = false;      ///< PlanStage::all_ready
  bool waits_for_sum = false;  ///< each round ends with a sum, which is another transfer
  std::int64_t channel = 0;    ///< elements that the busiest channel carries
  std::vector<Flow> flows;     ///< without empty ones
  std::vector<DirectLine> direct;
};

using StepSink = std::function<void(const PlanStep&)>;

}  // namespace trellis::sim
