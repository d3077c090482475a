#include "device/compiler/emit/sync.h"

#include <algorithm>
#include <tuple>

namespace trellis::device {
namespace {

constexpr int kNumExecutors = isa::kNumEngines + isa::kNumEngines * isa::kNumDmaQueues;

bool is_dma(isa::Opcode opcode) {
  return opcode == isa::Opcode::kDma || opcode == isa::Opcode::kDmaGather ||
         opcode == isa::Opcode::kDmaScatterAdd;
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
      : phase_(phase), entries_(phase.entries()), known_(entries_.size()) {
    plan_.waits.resize(entries_.size());
    plan_.posts.resize(entries_.size());
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
  struct Conflict {
    int first = 0, second = 0;  ///< entries, first < second
    int loop = 0;
    int distance = 0;  ///< of second → first in a later iteration; 0: none
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

  void add_conflict(int first, int second, const Tile* ring) {
    const int loop = common_loop(entries_[first].loop, entries_[second].loop);
    int distance = loop == 0 ? 0 : 1;
    if (ring != nullptr && loop == ring->home && loop != 0) distance = ring->depth;
    conflicts_.push_back({first, second, loop, distance});
  }

  void collect_conflicts() {
    const auto& tiles = phase_.tile_list();
    for (std::size_t t = 0; t < tiles.size(); ++t) {
      const Tile& tile = tiles[t];
      for (std::size_t b = 0; b < tile.entries.size(); ++b) {
        for (std::size_t a = 0; a < b; ++a) {
          if (tile.scattered && tile.writes[a] && tile.writes[b]) continue;
          if (tile.writes[a] || tile.writes[b])
            add_conflict(tile.entries[a], tile.entries[b], &tile);
        }
      }
      for (std::size_t u = t + 1; u < tiles.size(); ++u) {
        if (overlap(tile, tiles[u])) collect_aliases(tile, tiles[u]);
      }
    }
    std::sort(conflicts_.begin(), conflicts_.end(), [](const Conflict& x, const Conflict& y) {
      return std::tie(x.second, y.first) < std::tie(y.second, x.first);
    });
  }

  static bool overlap(const Tile& a, const Tile& b) {
    return a.space == b.space && a.address < b.address + b.slot_bytes * b.depth &&
           b.address < a.address + a.slot_bytes * a.depth;
  }

  /// Tiles of different scopes that share memory: every write of one comes after every use of the
  /// other.
  void collect_aliases(const Tile& a, const Tile& b) {
    for (std::size_t i = 0; i < a.entries.size(); ++i) {
      for (std::size_t j = 0; j < b.entries.size(); ++j) {
        if (!a.writes[i] && !b.writes[j]) continue;
        add_conflict(std::min(a.entries[i], b.entries[j]), std::max(a.entries[i], b.entries[j]),
                     nullptr);
      }
    }
  }

  /// first is complete before second starts, within one iteration, by what is known so far.
  bool ordered(int first, int second) const {
    return known_[second][executor(entries_[first])] > first;
  }

  static bool waits_needed(int source_executor, int target_engine) {
    return source_executor != target_engine;
  }

  void order_forward() {
    std::array<int, isa::kNumEngines> last{};
    last.fill(-1);
    std::size_t next = 0;
    for (int i = 0; i < static_cast<int>(entries_.size()); ++i) {
      if (entries_[i].kind != Entry::Kind::kInstruction) continue;
      const int engine = static_cast<int>(entries_[i].engine);
      if (last[engine] >= 0) {
        merge(known_[i], known_[last[engine]]);
        if (!is_dma(entries_[last[engine]].instruction.opcode))
          known_[i][engine] = std::max(known_[i][engine], last[engine] + 1);
      }
      last[engine] = i;
      // Conflicts of i, latest source first, so that the strongest edge is made and implies the
      // others.
      for (; next < conflicts_.size() && conflicts_[next].second == i; ++next) {
        const Conflict& c = conflicts_[next];
        const int source = executor(entries_[c.first]);
        if (!waits_needed(source, engine) || ordered(c.first, i)) continue;
        forward_.push_back(make_edge(c.first, i, c.loop, 0));
        merge(known_[i], known_[c.first]);
        known_[i][source] = std::max(known_[i][source], c.first + 1);
      }
    }
  }

  bool same_or_ordered(int first, int second) const {
    return first == second || ordered(first, second) || in_order(first, second);
  }
  bool in_order(int first, int second) const {
    return first < second && executor(entries_[first]) == executor(entries_[second]);
  }
  /// `second` cannot start before `first` has started waiting.
  bool starts_after(int first, int second) const {
    return first == second ||
           (first < second && entries_[first].engine == entries_[second].engine) ||
           ordered(first, second);
  }

  void order_carried() {
    // Candidates: the later entry of an iteration must be complete before the earlier one of a
    // later iteration starts.
    std::vector<Conflict> candidates;
    for (const Conflict& c : conflicts_) {
      if (c.distance > 0 &&
          waits_needed(executor(entries_[c.second]), static_cast<int>(entries_[c.first].engine)))
        candidates.push_back(c);
      // Both directions cross an iteration: a write early in the body also follows itself, which
      // in-order executors keep.
      if (c.distance > 0 &&
          waits_needed(executor(entries_[c.first]), static_cast<int>(entries_[c.second].engine)))
        continue;
    }
    // Strongest first: latest source, earliest target.
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Conflict& x, const Conflict& y) {
                       return std::tie(x.first, y.second) < std::tie(y.first, x.second);
                     });
    for (const Conflict& c : candidates) {
      const bool implied = std::any_of(carried_.begin(), carried_.end(), [&](const Edge& e) {
        return e.loop == c.loop && e.distance <= c.distance &&
               same_or_ordered(c.second, e.source) && starts_after(e.target, c.first);
      });
      if (!implied) carried_.push_back(make_edge(c.second, c.first, c.loop, c.distance));
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
      const int source = executor(entries_[e.source]);
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
  std::vector<Clock> known_;
  std::vector<Conflict> conflicts_;
  std::vector<Edge> forward_, carried_;
  SyncPlan plan_;
};

}  // namespace

SyncPlan plan_sync(const Phase& phase) { return Planner(phase).run(); }

}  // namespace trellis::device
