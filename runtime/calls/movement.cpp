#include "runtime/calls/movement.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <numeric>

#include <c10/util/Exception.h>

#include "runtime/calls/reduce_kernel.h"

namespace trellis::runtime {
namespace {

using sim::CollectiveKind;
using sim::CommPlan;
using sim::PlanStep;
using MemberSet = std::vector<int>;  // ascending

/// The working buffers of all members during a plan: which members' contributions each range holds.
class SymbolicBuffers {
 public:
  SymbolicBuffers(const CommPlan& plan, int root) : members_(plan.members), root_(root) {
    cut(plan);
    held_.assign(static_cast<std::size_t>(members_), std::vector<MemberSet>(cuts_.size() - 1));
    for (int m = 0; m < members_; ++m) fill_start(plan, m);
  }

  void apply(const PlanStep& step) {
    TORCH_INTERNAL_ASSERT(step.source == step.target,
                          "only an all-to-all may move data to another place of the buffer");
    const auto& from = held_[static_cast<std::size_t>(rotated(step.from))];
    auto& to = held_[static_cast<std::size_t>(rotated(step.to))];
    for (std::size_t s = index(step.source); cuts_[s] < step.source + step.length; ++s) {
      to[s] = step.reduce ? united(to[s], from[s]) : from[s];
    }
  }

  [[nodiscard]] int rotated(int member) const { return (member + root_) % members_; }

  [[nodiscard]] std::vector<Delivery> deliveries() const {
    std::vector<Delivery> result;
    for (std::size_t s = 0; s + 1 < cuts_.size(); ++s) {
      std::map<MemberSet, std::vector<int>> holders;
      for (int m = 0; m < members_; ++m)
        holders[held_[static_cast<std::size_t>(m)][s]].push_back(m);
      for (auto& [from, to] : holders) {
        if (!from.empty())
          result.push_back({cuts_[s], cuts_[s], cuts_[s + 1] - cuts_[s], from, to});
      }
    }
    return result;
  }

 private:
  /// Ranges between neighbouring cuts are never split by a step.
  void cut(const CommPlan& plan) {
    cuts_ = {0, plan.elements};
    for (const PlanStep& step : plan.steps) {
      cuts_.push_back(step.source);
      cuts_.push_back(step.source + step.length);
    }
    for (int m = 0; m < members_ && is_sharded(plan.kind); ++m)
      cuts_.push_back(shard_begin(plan, m));
    std::sort(cuts_.begin(), cuts_.end());
    cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
  }

  void fill_start(const CommPlan& plan, int member) {
    auto& held = held_[static_cast<std::size_t>(member)];
    for (std::size_t s = 0; s + 1 < cuts_.size(); ++s) {
      const bool own_shard =
          cuts_[s] >= shard_begin(plan, member) && cuts_[s] < shard_begin(plan, member + 1);
      const bool holds = plan.kind == CollectiveKind::kBroadcast   ? member == root_
                         : plan.kind == CollectiveKind::kAllGather ? own_shard
                                                                   : true;
      if (holds) held[s] = {member};
    }
  }

  static bool is_sharded(CollectiveKind kind) {
    return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
  }
  static std::int64_t shard_begin(const CommPlan& plan, int member) {
    return plan.elements / plan.members * member;
  }

  [[nodiscard]] std::size_t index(std::int64_t offset) const {
    return static_cast<std::size_t>(std::lower_bound(cuts_.begin(), cuts_.end(), offset) -
                                    cuts_.begin());
  }

  static MemberSet united(const MemberSet& a, const MemberSet& b) {
    MemberSet both;
    std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
    TORCH_INTERNAL_ASSERT(both.size() == a.size() + b.size(),
                          "the plan adds a member's contribution twice");
    return both;
  }

  int members_;
  int root_;
  std::vector<std::int64_t> cuts_;
  std::vector<std::vector<MemberSet>> held_;  // [member][range between cuts]
};

/// `per_position` by member instead of by position in the plan.
std::vector<std::int64_t> rotated(std::vector<std::int64_t> per_position, int root) {
  std::rotate(per_position.rbegin(), per_position.rbegin() + root, per_position.rend());
  return per_position;
}

/// Every step of an all-to-all reads the sender's first buffer and writes the receiver's second
/// one, so steps do not meet. A member copies its own block itself.
std::vector<Delivery> exchange_deliveries(const CommPlan& plan) {
  std::vector<Delivery> result;
  for (const PlanStep& step : plan.steps)
    result.push_back({step.source, step.target, step.length, {step.from}, {step.to}});
  const std::int64_t block = plan.elements / plan.members;
  for (int m = 0; m < plan.members; ++m) result.push_back({m * block, m * block, block, {m}, {m}});
  return result;
}

/// Keeps of a reduce-scatter's deliveries what each member needs: its own shard.
void keep_own_shards(const CommPlan& plan, std::vector<Delivery>& deliveries) {
  const std::int64_t shard = plan.elements / plan.members;
  std::vector<Delivery> kept;
  for (Delivery& delivery : deliveries) {
    const int owner = static_cast<int>(delivery.target / shard);
    if (std::binary_search(delivery.to.begin(), delivery.to.end(), owner)) {
      delivery.to = {owner};
      kept.push_back(std::move(delivery));
    }
  }
  deliveries = std::move(kept);
}

/// The bytes at `offset`, null when the member has no tensor there; `length` shrinks to where that
/// changes.
std::byte* find(const std::vector<Piece>& pieces, std::int64_t offset, std::int64_t item,
                std::int64_t& length) {
  auto after = std::upper_bound(pieces.begin(), pieces.end(), offset,
                                [](std::int64_t o, const Piece& p) { return o < p.offset; });
  if (after != pieces.end()) length = std::min(length, after->offset - offset);
  if (after == pieces.begin()) return nullptr;
  const Piece& piece = *std::prev(after);
  const std::int64_t left = piece.offset + piece.length - offset;
  if (left <= 0) return nullptr;
  length = std::min(length, left);
  return piece.data + (offset - piece.offset) * item;
}

/// Moves parts of deliveries whose ranges may cross the borders of tensors.
class Mover {
 public:
  Mover(const std::vector<const MemberBuffers*>& members, c10::ScalarType dtype,
        Reduction reduction)
      : members_(members),
        dtype_(dtype),
        reduction_(reduction),
        item_(static_cast<std::int64_t>(c10::elementSize(dtype))) {}

  void move(const Delivery& delivery, std::int64_t begin, std::int64_t end) {
    while (begin < end) begin += move_run(delivery, begin, end - begin);
  }

 private:
  /// Moves the longest run from `begin` that crosses no border of any tensor; returns its length.
  std::int64_t move_run(const Delivery& delivery, std::int64_t begin, std::int64_t length) {
    sources_.clear();
    targets_.clear();
    for (int m : delivery.from) {
      const std::byte* source = find(members_[static_cast<std::size_t>(m)]->inputs,
                                     delivery.source + begin, item_, length);
      TORCH_INTERNAL_ASSERT(source != nullptr, "member ", m, " has no data at ",
                            delivery.source + begin);
      sources_.push_back(source);
    }
    for (int m : delivery.to) {
      std::byte* target = find(members_[static_cast<std::size_t>(m)]->outputs,
                               delivery.target + begin, item_, length);
      if (target != nullptr) targets_.push_back(target);
    }
    if (reduction_ == Reduction::kNone) {
      copy(length);
    } else if (!targets_.empty()) {
      reduce_into(targets_, sources_, length, dtype_, reduction_);
    }
    return length;
  }

  void copy(std::int64_t length) {
    for (std::byte* target : targets_) {
      if (target != sources_[0])
        std::memmove(target, sources_[0], static_cast<std::size_t>(length * item_));
    }
  }

  const std::vector<const MemberBuffers*>& members_;
  c10::ScalarType dtype_;
  Reduction reduction_;
  std::int64_t item_;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
};

}  // namespace

Movement execute_plan(const CommPlan& plan, int root) {
  Movement movement;
  movement.sent = rotated(sim::elements_sent(plan), root);
  if (plan.elements == 0) return movement;
  if (plan.kind == CollectiveKind::kAllToAll) {
    movement.deliveries = exchange_deliveries(plan);
    return movement;
  }
  SymbolicBuffers buffers(plan, root);
  for (const PlanStep& step : plan.steps) buffers.apply(step);
  movement.deliveries = buffers.deliveries();
  if (plan.kind == CollectiveKind::kReduceScatter) keep_own_shards(plan, movement.deliveries);
  return movement;
}

Movement uneven_exchange(const std::vector<std::vector<std::int64_t>>& splits) {
  Movement movement;
  movement.sent.assign(splits.size(), 0);
  std::vector<std::int64_t> received(splits.size(), 0);
  for (std::size_t from = 0; from < splits.size(); ++from) {
    std::int64_t source = 0;
    for (std::size_t to = 0; to < splits.size(); ++to) {
      const std::int64_t length = splits[from][to];
      if (length > 0)
        movement.deliveries.push_back(
            {source, received[to], length, {static_cast<int>(from)}, {static_cast<int>(to)}});
      if (from != to) movement.sent[from] += length;
      source += length;
      received[to] += length;
    }
  }
  return movement;
}

std::int64_t total_length(const Movement& movement) {
  return std::accumulate(movement.deliveries.begin(), movement.deliveries.end(), std::int64_t{0},
                         [](std::int64_t sum, const Delivery& d) { return sum + d.length; });
}

void move_bytes(const Movement& movement, const std::vector<const MemberBuffers*>& members,
                std::int64_t begin, std::int64_t end, c10::ScalarType dtype, Reduction reduction) {
  Mover mover(members, dtype, reduction);
  std::int64_t start = 0;  // of this delivery when all are laid end to end
  for (const Delivery& delivery : movement.deliveries) {
    const std::int64_t first = std::max<std::int64_t>(begin - start, 0);
    const std::int64_t last = std::min(end - start, delivery.length);
    if (first < last) mover.move(delivery, first, last);
    start += delivery.length;
  }
}

}  // namespace trellis::runtime
