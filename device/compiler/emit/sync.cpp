#include "device/compiler/emit/sync.h"

#include <algorithm>
#include <functional>
#include <tuple>

namespace trellis::device {
namespace {

constexpr int kNumExecutors = isa::kNumEngines + isa::kNumEngines * isa::kNumDmaQueues;

bool is_dma(isa::Opcode opcode) {
  return opcode == isa::Opcode::kDma || opcode == isa::Opcode::kDmaGather ||
         opcode == isa::Opcode::kDmaScatterAdd || opcode == isa::Opcode::kDmaTranspose;
}

/// Engines, then the DMA rings that they start.
int executor(const Entry& entry) {
  const int engine = static_cast<int>(entry.engine);
  if (!is_dma(entry.instruction.opcode)) return engine;
  return isa::kNumEngines + engine * isa::kNumDmaQueues +
         static_cast<int>(entry.instruction.dma_queue);
}

/// For each executor: 1 + the last entry that is known to be complete.
using Clock = std::array<int, kNumExecutors>;

void merge(Clock& into, const Clock& other) {
  for (int i = 0; i < kNumExecutors; ++i) into[i] = std::max(into[i], other[i]);
}

/// An order that must hold: `source` posts, `target`'s engine waits.
struct Edge {
  int source = 0, target = 0;  ///< entries
  int loop = 0;                ///< innermost loop around both
  int distance = 0;            ///< iterations of `loop`
  // where the tokens go, as entry numbers
  int post_begin = 0, post_end = 0, wait_at = 0;
  std::int64_t tokens = 1;  ///< per iteration of `loop`
};

class Planner {
 public:
  explicit Planner(const Phase& phase)
      : phase_(phase),
        entries_(phase.entries()),
        known_(entries_.size()),
        sources_(entries_.size()),
        carried_in_(phase.loops().size()) {
    plan_.waits.resize(entries_.size());
    plan_.posts.resize(entries_.size());
    for (const Entry& entry : entries_) executors_.push_back(executor(entry));
  }

  SyncPlan run() {
    collect_conflicts();
    order_forward();
    order_carried();
    assign(forward_, 0);
    assign(carried_, 1);
    return std::move(plan_);
  }

 private:
  /// In a later iteration of `loop`, the `distance`-th next one, `first` comes after `second` of
  /// this one.
  struct Conflict {
    int first = 0, second = 0;  ///< entries, first < second
    int loop = 0;
    int distance = 0;
  };

  int parent_child(int loop, int ancestor) const {
    while (phase_.loops()[loop].parent != ancestor) loop = phase_.loops()[loop].parent;
    return loop;
  }

  int common_loop(int a, int b) const {
    const auto& loops = phase_.loops();
    while (a != b) {
      if (loops[a].depth >= loops[b].depth) {
        a = loops[a].parent;
      } else {
        b = loops[b].parent;
      }
    }
    return a;
  }

  void collect_conflicts() {
    const auto& tiles = phase_.tile_list();
    for (std::size_t t = 0; t < tiles.size(); ++t) {
      collect(tiles[t], tiles[t]);
      for (std::size_t u = t + 1; u < tiles.size(); ++u) {
        if (!overlap(tiles[t], tiles[u])) continue;
        // Every write of one comes after every use of the other.
        collect(tiles[t], tiles[u]);
        collect(tiles[u], tiles[t]);
      }
    }
  }

  /// Collects conflicts between uses of one tile and later ones of another, or of the same. Only
  /// one of them can matter per executor, because an executor works in order.
  void collect(const Tile& before, const Tile& after) {
    collect_sources(before, after);
    collect_carried(before, after);
  }

  /// One use of each kind for each executor, as 1 + its entry; 0: none.
  struct Uses {
    Clock reads{}, writes{};
    void add(int executor, bool writes_it, int entry) {
      int& known = (writes_it ? writes : reads)[static_cast<std::size_t>(executor)];
      if (known == 0 || entry >= known) known = 1 + entry;
    }
    /// With which of them a use conflicts.
    [[nodiscard]] int of(int executor, bool reads_count, bool writes_count) const {
      const auto e = static_cast<std::size_t>(executor);
      return std::max(reads_count ? reads[e] : 0, writes_count ? writes[e] : 0);
    }
  };

  /// For each later use the last earlier ones.
  void collect_sources(const Tile& before, const Tile& after) {
    const bool sums = &before == &after && before.scattered;
    Uses uses;
    for (std::size_t a = 0, b = 0; b < after.entries.size(); ++b) {
      const int target = after.entries[b];
      for (; a < before.entries.size() && before.entries[a] < target; ++a)
        uses.add(executors_[before.entries[a]], before.writes[a], before.entries[a]);
      for (int e = 0; e < kNumExecutors; ++e) {
        if (!waits_needed(e, static_cast<int>(entries_[target].engine))) continue;
        int& known = sources_[target][e];
        known = std::max(known, uses.of(e, after.writes[b], !(sums && after.writes[b])));
      }
    }
  }

  /// For each earlier use the last later ones, which may be of its next iteration.
  void collect_carried(const Tile& before, const Tile& after) {
    const bool sums = &before == &after && before.scattered;
    std::map<int, Uses> by_loop;
    for (std::size_t a = before.entries.size(), b = after.entries.size(); a-- > 0;) {
      const int first = before.entries[a];
      for (; b > 0 && after.entries[b - 1] > first; --b) {
        const int second = after.entries[b - 1];
        by_loop[entries_[second].loop].add(executors_[second], after.writes[b - 1], second);
      }
      for (const auto& [inner, uses] : by_loop) {
        const int loop = common_loop(entries_[first].loop, inner);
        if (loop == 0) continue;
        const bool ring = &before == &after && loop == before.home;
        add_carried(first, loop, ring ? before.depth : 1, uses, before.writes[a],
                    !(sums && before.writes[a]));
      }
    }
  }

  void add_carried(int first, int loop, int distance, const Uses& uses, bool reads_count,
                   bool writes_count) {
    for (int e = 0; e < kNumExecutors; ++e) {
      const int second = uses.of(e, reads_count, writes_count) - 1;
      if (second >= 0 && waits_needed(e, static_cast<int>(entries_[first].engine)))
        conflicts_.push_back({first, second, loop, distance});
    }
  }

  static bool overlap(const Tile& a, const Tile& b) {
    return a.space == b.space && a.address < b.address + b.slot_bytes * b.depth &&
           b.address < a.address + a.slot_bytes * a.depth;
  }

  /// first is complete before second starts, within one iteration, by what is known so far.
  bool ordered(int first, int second) const { return known_[second][executors_[first]] > first; }

  static bool waits_needed(int source_executor, int target_engine) {
    return source_executor != target_engine;
  }

  void order_forward() {
    std::array<int, isa::kNumEngines> last{};
    last.fill(-1);
    for (int i = 0; i < static_cast<int>(entries_.size()); ++i) {
      if (entries_[i].kind != Entry::Kind::kInstruction) continue;
      const int engine = static_cast<int>(entries_[i].engine);
      if (last[engine] >= 0) {
        merge(known_[i], known_[last[engine]]);
        if (!is_dma(entries_[last[engine]].instruction.opcode))
          known_[i][engine] = std::max(known_[i][engine], last[engine] + 1);
      }
      last[engine] = i;
      order_after_sources(i);
    }
  }

  /// Latest source first, so that the strongest edge is made and implies the others.
  void order_after_sources(int target) {
    std::array<int, kNumExecutors> latest = sources_[target];
    std::sort(latest.begin(), latest.end(), std::greater<>());
    for (const int known : latest) {
      if (known == 0) return;
      const int source = known - 1;
      if (ordered(source, target)) continue;
      const int loop = common_loop(entries_[source].loop, entries_[target].loop);
      forward_.push_back(make_edge(source, target, loop, 0));
      merge(known_[target], known_[source]);
      int& complete = known_[target][executors_[source]];
      complete = std::max(complete, known);
    }
  }

  bool same_or_ordered(int first, int second) const {
    return first == second || ordered(first, second) || in_order(first, second);
  }
  bool in_order(int first, int second) const {
    return first < second && executors_[first] == executors_[second];
  }
  /// `second` cannot start before `first` has started waiting.
  bool starts_after(int first, int second) const {
    return first == second ||
           (first < second && entries_[first].engine == entries_[second].engine) ||
           ordered(first, second);
  }

  /// The later entry of an iteration must be complete before the earlier one of a later iteration
  /// starts.
  void order_carried() {
    // Strongest first: latest source, earliest target, next iteration.
    std::sort(conflicts_.begin(), conflicts_.end(), [](const Conflict& x, const Conflict& y) {
      return std::tie(x.first, y.second, x.distance) < std::tie(y.first, x.second, y.distance);
    });
    for (const Conflict& c : conflicts_) {
      std::vector<int>& known = carried_in_[c.loop];
      const bool implied = std::any_of(known.begin(), known.end(), [&](int i) {
        const Edge& e = carried_[i];
        return e.distance <= c.distance && same_or_ordered(c.second, e.source) &&
               starts_after(e.target, c.first);
      });
      if (implied) continue;
      known.push_back(static_cast<int>(carried_.size()));
      carried_.push_back(make_edge(c.second, c.first, c.loop, c.distance));
    }
  }

  Edge make_edge(int source, int target, int loop, int distance) const {
    Edge e{source, target, loop, distance};
    const auto& loops = phase_.loops();
    e.post_begin = e.post_end = source;
    e.wait_at = target;
    if (entries_[source].loop != loop) {
      const int child = parent_child(entries_[source].loop, loop);
      e.post_begin = loops[child].begin;
      e.post_end = loops[child].end;
      if (is_dma(entries_[source].instruction.opcode)) {
        for (int l = entries_[source].loop; l != loop; l = loops[l].parent)
          e.tokens *= loops[l].count;
      } else {
        e.post_begin = e.post_end;
      }
    }
    if (entries_[target].loop != loop)
      e.wait_at = loops[parent_child(entries_[target].loop, loop)].begin;
    return e;
  }

  /// A semaphore as a queue of tokens: all its edges in the same order on both sides.
  struct Channel {
    int semaphore = 0;
    int post_end = 0, wait_at = 0;
  };

  void assign(std::vector<Edge>& edges, int carried) {
    std::stable_sort(edges.begin(), edges.end(), [](const Edge& x, const Edge& y) {
      return std::tie(x.post_begin, x.wait_at) < std::tie(y.post_begin, y.wait_at);
    });
    std::map<std::tuple<int, int, int, int>, std::vector<Channel>> channels;
    for (const Edge& e : edges) {
      const int source = executors_[e.source];
      const int engine = static_cast<int>(entries_[e.target].engine);
      auto& open = channels[{source, engine, carried ? e.loop : 0, e.distance}];
      auto channel = std::find_if(open.begin(), open.end(), [&](const Channel& c) {
        return c.post_end < e.post_begin && c.wait_at < e.wait_at;
      });
      if (channel == open.end()) {
        open.push_back({static_cast<int>(plan_.waiter.size()), -1, -1});
        plan_.waiter.push_back(engine);
        channel = open.end() - 1;
      }
      channel->post_end = e.post_end;
      channel->wait_at = e.wait_at;
      place(e, channel->semaphore);
    }
  }

  void place(const Edge& e, int semaphore) {
    const int engine = static_cast<int>(entries_[e.target].engine);
    const SyncPlan::Token wait{semaphore, e.tokens};
    const SyncPlan::Token post{semaphore, 1};
    if (e.post_begin == e.post_end && e.post_end != e.source) {
      plan_.loop_posts[{e.post_end, static_cast<int>(entries_[e.source].engine)}].push_back(post);
    } else {
      plan_.posts[e.source].push_back(post);
    }
    if (e.wait_at == e.target) {
      plan_.waits[e.target].push_back(wait);
    } else {
      plan_.loop_waits[{e.wait_at, engine}].push_back(wait);
    }
    if (e.distance == 0) return;
    add(plan_.credits[engine], semaphore, e.tokens * e.distance);
    add(plan_.drains[engine], semaphore, e.tokens * e.distance);
  }

  static void add(std::vector<SyncPlan::Token>& list, int semaphore, std::int64_t value) {
    for (auto& token : list) {
      if (token.semaphore != semaphore) continue;
      token.value += value;
      return;
    }
    list.push_back({semaphore, value});
  }

  const Phase& phase_;
  const std::vector<Entry>& entries_;
  std::vector<int> executors_;  ///< of each entry
  std::vector<Clock> known_;
  std::vector<Clock> sources_;       ///< of each entry, the conflicts that it comes after
  std::vector<Conflict> conflicts_;  ///< from an iteration to a later one
  std::vector<Edge> forward_, carried_;
  std::vector<std::vector<int>> carried_in_;  ///< of each loop, as places in carried_
  SyncPlan plan_;
};

}  // namespace

SyncPlan plan_sync(const Phase& phase) { return Planner(phase).run(); }

}  // namespace trellis::device
