#include "sim/collectives/stage_steps.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.h"
#include "sim/collectives/patterns.h"

namespace trellis::sim {
namespace {

int rounds_of(Pattern pattern, int members) {
  if (members <= 1) return 0;
  switch (pattern) {
    case Pattern::kRing: return ring_rounds(members);
    case Pattern::kKangaRing: return kanga_ring_rounds(members);
    case Pattern::kDirect: return 1;
    case Pattern::kHalvingDoubling: return hypercube_axes(members);
    case Pattern::kSteps: break;
  }
  TRELLIS_CHECK(false, "explicit steps have no lines");
  return 0;
}

void emit_round(const PlanStage& stage, const Line& line, int round, int printed,
                const StepSink& sink) {
  if (round >= rounds_of(stage.pattern, line.size())) return;
  switch (stage.pattern) {
    case Pattern::kRing: return emit_ring_round(line, stage.reduce, round, printed, sink);
    case Pattern::kKangaRing:
      return emit_kanga_ring_round(line, stage.reduce, round, printed, sink);
    case Pattern::kDirect: return emit_direct_round(line, stage.reduce, printed, sink);
    case Pattern::kHalvingDoubling:
      return emit_halving_doubling_round(line, stage.reduce, round, printed, sink);
    case Pattern::kSteps: break;
  }
}

std::vector<int> members_later(const Line& line, int later) {
  std::vector<int> members = line.members;
  for (int& member : members) member += later;
  return members;
}

std::vector<DirectLine> direct_lines_of(const PlanStage& stage) {
  std::vector<DirectLine> lines;
  for (const Line& line : stage.lines) {
    if (stage.pattern != Pattern::kDirect || line.size() <= kMaxWrittenDirect) continue;
    const std::vector<std::int64_t> owned = owned_lengths(line);
    lines.push_back({line.members, owned, stage.reduce});
    for (const int later : line.alike) {
      lines.push_back({members_later(line, later), owned, stage.reduce});
    }
  }
  return lines;
}

/// The flows of lines that are alike, from those of the first of them, flows[begin…].
void add_flows_of_alike(const Line& line, std::size_t begin, std::vector<Flow>& flows) {
  const std::size_t end = flows.size();
  flows.resize(end + line.alike.size() * (end - begin));
  std::size_t to = end;
  for (const int later : line.alike) {
    for (std::size_t f = begin; f < end; ++f) {
      Flow& flow = flows[to++] = flows[f];
      flow.from += later;
      flow.to += later;
    }
  }
}

/// The elements on the busiest channel of a line, from the line's flows, flows[begin…]. A ring has
/// one channel for each way; a KangaRing's passes everything on to the buddy, together with what
/// goes to the next pair. Elsewhere a member's channels share all that it sends.
std::int64_t busiest_channel(const PlanStage& stage, const Line& line,
                             const std::vector<Flow>& flows, std::size_t begin) {
  if (stage.channels == 0) return 0;
  std::int64_t most = 0;
  if (stage.pattern == Pattern::kRing && line.size() > 2) {
    for (std::size_t f = begin; f < flows.size(); ++f) most = std::max(most, flows[f].elements);
    return most;
  }
  if (stage.pattern == Pattern::kKangaRing) {
    const std::vector<std::int64_t> owned = owned_lengths(line);
    return (std::accumulate(owned.begin(), owned.end(), std::int64_t{0}) + 1) / 2;
  }
  std::vector<std::int64_t> sent(static_cast<std::size_t>(*std::ranges::max_element(line.members)) +
                                 1);
  for (std::size_t f = begin; f < flows.size(); ++f)
    most = std::max(most, sent[static_cast<std::size_t>(flows[f].from)] += flows[f].elements);
  return (most + stage.channels - 1) / stage.channels;
}

std::vector<Flow> flows_of(const PlanStage& stage, std::int64_t& channel) {
  std::vector<Flow> flows;
  for (const Line& line : stage.lines) {
    if (line.size() < 2) continue;
    const std::size_t begin = flows.size();
    switch (stage.pattern) {
      case Pattern::kRing: add_ring_flows(line, stage.reduce, flows); break;
      case Pattern::kKangaRing: add_kanga_ring_flows(line, stage.reduce, flows); break;
      case Pattern::kHalvingDoubling: add_halving_doubling_flows(line, stage.reduce, flows); break;
      case Pattern::kDirect:
        if (line.size() <= kMaxWrittenDirect) add_direct_flows(line, stage.reduce, flows);
        break;
      case Pattern::kSteps: break;
    }
    channel = std::max(channel, busiest_channel(stage, line, flows, begin));
    add_flows_of_alike(line, begin, flows);
  }
  std::erase_if(flows, [](const Flow& flow) { return flow.elements == 0; });
  return flows;
}

/// Messages of one member per round in one line.
int messages_of(const PlanStage& stage, int members) {
  switch (stage.pattern) {
    case Pattern::kRing: return members > 2 ? 2 : 1;
    case Pattern::kKangaRing: return 1;
    case Pattern::kDirect: return (members - 1 + stage.issuers - 1) / stage.issuers;
    case Pattern::kHalvingDoubling: return hypercube_axes(members);
    case Pattern::kSteps: break;
  }
  return 0;
}

StageTraffic traffic_of_lines(const PlanStage& stage) {
  StageTraffic result;
  result.rounds = round_count(stage);
  result.exchange = stage.pattern == Pattern::kHalvingDoubling;
  result.all_ready = stage.all_ready;
  const bool sliced = stage.pattern == Pattern::kRing || stage.pattern == Pattern::kKangaRing;
  result.waits_for_sum = stage.reduce && !sliced;
  result.flows = flows_of(stage, result.channel);
  result.direct = direct_lines_of(stage);
  struct Work {
    int messages = 0;
    std::int64_t owned = 0;
  };
  std::vector<Work> by_member;
  for (const Line& line : stage.lines) {
    const std::vector<std::int64_t> lengths = owned_lengths(line);
    const int sent = line.size() > 1 ? messages_of(stage, line.size()) : 0;
    const int times = sliced ? 1 : line.size() - 1;
    const auto add = [&](int later) {
      for (std::size_t m = 0; m < line.members.size(); ++m) {
        const auto member = static_cast<std::size_t>(line.members[m] + later);
        if (member >= by_member.size()) by_member.resize(member + 1);
        by_member[member].messages += sent;
        by_member[member].owned += lengths[m] * times;
      }
    };
    add(0);
    for (const int later : line.alike) add(later);
  }
  for (const Work& work : by_member) {
    result.messages = std::max(result.messages, work.messages);
    if (stage.reduce) result.reduced_last = std::max(result.reduced_last, work.owned);
  }
  return result;
}

/// The rounds of explicit steps differ from each other: each represents itself.
std::vector<StageTraffic> traffic_of_steps(const std::vector<PlanStep>& steps) {
  std::vector<StageTraffic> rounds;
  for (std::size_t begin = 0; begin < steps.size();) {
    StageTraffic& round = rounds.emplace_back();
    round.rounds = 1;
    std::map<int, int> messages;
    std::map<int, std::int64_t> reduced;
    std::size_t end = begin;
    for (; end < steps.size() && steps[end].round == steps[begin].round; ++end) {
      const PlanStep& s = steps[end];
      round.flows.push_back({s.from, s.to, s.length, s.reduce, s.fused});
      round.messages = std::max(round.messages, ++messages[s.from]);
      if (s.reduce) round.reduced_last = std::max(round.reduced_last, reduced[s.to] += s.length);
    }
    begin = end;
  }
  return rounds;
}

}  // namespace

int round_count(const PlanStage& stage) {
  if (stage.pattern == Pattern::kSteps)
    return stage.steps.empty() ? 0 : stage.steps.back().round + 1;
  int rounds = 0;
  for (const Line& line : stage.lines)
    rounds = std::max(rounds, rounds_of(stage.pattern, line.size()));
  return rounds;
}

void for_each_step(const PlanStage& stage, int first_round, const StepSink& sink) {
  for (PlanStep step : stage.steps) {
    step.round += first_round;
    sink(step);
  }
  if (stage.pattern == Pattern::kSteps) return;
  const int rounds = round_count(stage);
  for (int round = 0; round < rounds; ++round) {
    for (const Line& line : stage.lines) {
      emit_round(stage, line, round, first_round + round, sink);
      for (const int later : line.alike) {
        const Line other{members_later(line, later), line.owned};
        emit_round(stage, other, round, first_round + round, sink);
      }
    }
  }
}

std::vector<StageTraffic> traffic(const PlanStage& stage) {
  if (stage.pattern == Pattern::kSteps) return traffic_of_steps(stage.steps);
  StageTraffic all = traffic_of_lines(stage);
  if (all.rounds == 0 || (all.flows.empty() && all.direct.empty())) return {};
  std::vector<StageTraffic> parts;  // a list of initial values would copy it
  parts.push_back(std::move(all));
  return parts;
}

CommPlan expand(const PlanOutline& outline) {
  CommPlan plan{outline.kind, outline.members, outline.elements, {}, outline.second_buffer};
  int round = 0;
  for (const PlanStage& stage : outline.stages) {
    for_each_step(stage, round, [&](const PlanStep& step) { plan.steps.push_back(step); });
    round += round_count(stage);
  }
  return plan;
}

}  // namespace trellis::sim
