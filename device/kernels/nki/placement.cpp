#include "device/kernels/nki/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"

namespace trellis::device::nki {
namespace {

constexpr std::int64_t kAlignment = 64;

/// Steps in program order; a loop has two: its begin and its end.
struct Span {
  int begin = 0, end = 0;
};

/// How long each tile is alive.
class Lives {
 public:
  explicit Lives(const Document& document) : document_(document), lives_(document.tensors.size()) {
    loops_[0] = {0, 0};
    walk(document.body);
    loops_[0].end = position_;
  }

  struct Life {
    bool used = false, direct = true;
    Span span;
    std::string line;  ///< of its first use
  };
  [[nodiscard]] const Life& of(std::size_t tensor) const { return lives_[tensor]; }
  [[nodiscard]] Span loop(int id) const { return loops_.at(id); }
  [[nodiscard]] std::string line_at(int position) const {
    const auto found = lines_.lower_bound(position);
    return found == lines_.end() ? "" : found->second;
  }

 private:
  void walk(const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      if (step.loop != 0) {
        around_.push_back(step.loop);
        loops_[step.loop].begin = position_++;
        pending_.emplace_back();
        walk(step.body);
        loops_[step.loop].end = position_++;
        // All iterations of an inner loop use the tiles of an outer one that its body names.
        for (const int tensor : pending_.back()) extend(tensor, loops_[step.loop]);
        pending_.pop_back();
        around_.pop_back();
      } else {
        lines_[position_] = step.line;
        for (const Operand& o : step.operands) use(o, step.line);
        ++position_;
      }
    }
  }

  void use(const Operand& o, const std::string& line) {
    if (!o.present()) return;
    const Tensor& t = document_.tensors[static_cast<std::size_t>(o.tensor)];
    if (t.space == isa::MemorySpace::kHbm) return;
    Life& life = lives_[static_cast<std::size_t>(o.tensor)];
    if (!life.used) life = {true, true, {position_, position_}, line};
    extend(o.tensor, {position_, position_});
    const auto home = std::find(around_.begin(), around_.end(), t.home);
    const auto inside = static_cast<std::size_t>(around_.end() - home) - (t.home == 0 ? 0 : 1);
    const std::size_t depth = t.home == 0 ? around_.size() : inside;
    if (depth > 0) life.direct = false;
    for (std::size_t l = around_.size() - depth; l < around_.size(); ++l)
      pending_[l].push_back(o.tensor);
  }

  void extend(int tensor, Span by) {
    Life& life = lives_[static_cast<std::size_t>(tensor)];
    life.span.begin = std::min(life.span.begin, by.begin);
    life.span.end = std::max(life.span.end, by.end);
  }

  const Document& document_;
  std::vector<Life> lives_;
  std::map<int, Span> loops_;
  std::map<int, std::string> lines_;
  std::vector<int> around_;
  std::vector<std::vector<int>> pending_;
  int position_ = 1;
};

bool overlap(Span a, Span b) { return a.begin <= b.end && b.begin <= a.end; }

/// The tiles of one memory.
class Memory {
 public:
  Memory(const Document& document, const Lives& lives, isa::MemorySpace space,
         std::int64_t capacity, std::int64_t unit)
      : document_(document), lives_(lives), space_(space), capacity_(capacity), unit_(unit) {
    for (std::size_t t = 0; t < document.tensors.size(); ++t) {
      if (document.tensors[t].space == space && lives.of(t).used) tiles_.push_back(t);
    }
    std::stable_sort(tiles_.begin(), tiles_.end(),
                     [&](std::size_t a, std::size_t b) { return bytes(a) > bytes(b); });
  }

  void place(std::vector<Place>& places, Occupation& out) {
    for (const std::size_t t : tiles_) {
      const Lives::Life& life = lives_.of(t);
      places[t] = {true, 0, bytes(t), document_.tensors[t].home == 0 ? 1 : 2, life.direct};
    }
    // The largest rings give up their second slot first.
    for (std::size_t next = 0; !fit_oldest_first(places, out) && !fit(places, out); ++next) {
      while (next < tiles_.size() && places[tiles_[next]].depth == 1) ++next;
      if (next == tiles_.size()) refuse(places, out);
      places[tiles_[next]].depth = 1;
      out.single.push_back(static_cast<int>(tiles_[next]));
    }
    measure(places, out);
  }

 private:
  [[nodiscard]] std::int64_t bytes(std::size_t t) const {
    return (document_.tensors[t].bytes + unit_ - 1) / unit_ * unit_;
  }
  [[nodiscard]] Span span(std::size_t t, const Place& place) const {
    return place.depth > 1 ? lives_.loop(document_.tensors[t].home) : lives_.of(t).span;
  }

  /// In the order of their lives, each where the last tile died longest ago: what comes next need
  /// not wait for what came last.
  bool fit_oldest_first(std::vector<Place>& places, Occupation& out) const {
    out.bytes = 0;
    std::vector<std::size_t> order = tiles_;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return span(a, places[a]).begin < span(b, places[b]).begin;
    });
    Stretches stretches{{0, -1}, {capacity_, std::numeric_limits<int>::max()}};
    for (const std::size_t t : order) {
      const Span life = span(t, places[t]);
      const std::int64_t size = places[t].slot_bytes * places[t].depth;
      int oldest = life.begin;
      for (const auto& [address, ignored] : stretches) {
        const int died = died_last(stretches, address, size);
        if (died >= oldest) continue;
        oldest = died;
        places[t].address = address;
      }
      if (oldest == life.begin) return false;
      take(stretches, places[t].address, size, life.end);
      out.bytes = std::max(out.bytes, places[t].address + size);
    }
    return true;
  }
  /// Where a stretch of the memory begins, and when the last tile in it dies; it ends where the
  /// next begins.
  using Stretches = std::map<std::int64_t, int>;
  static int died_last(const Stretches& stretches, std::int64_t address, std::int64_t size) {
    int died = -1;
    for (auto s = stretches.find(address); s != stretches.end() && s->first < address + size; ++s)
      died = std::max(died, s->second);
    return stretches.rbegin()->first < address + size ? std::numeric_limits<int>::max() : died;
  }
  static void take(Stretches& stretches, std::int64_t address, std::int64_t size, int died) {
    const auto behind = std::prev(stretches.upper_bound(address + size));
    stretches.emplace(address + size, behind->second);
    stretches.erase(stretches.lower_bound(address), stretches.lower_bound(address + size));
    stretches.emplace(address, died);
  }

  bool fit(std::vector<Place>& places, Occupation& out) const {
    out.bytes = 0;
    std::vector<std::size_t> placed;
    for (const std::size_t t : tiles_) {
      std::vector<std::pair<std::int64_t, std::int64_t>> taken;
      for (const std::size_t other : placed) {
        const Place& p = places[other];
        if (overlap(span(t, places[t]), span(other, p)))
          taken.emplace_back(p.address, p.address + p.slot_bytes * p.depth);
      }
      std::sort(taken.begin(), taken.end());
      const std::int64_t size = places[t].slot_bytes * places[t].depth;
      std::int64_t address = 0;
      for (const auto& [begin, end] : taken) {
        if (address + size <= begin) break;
        address = std::max(address, end);
      }
      if (address + size > capacity_) return false;
      places[t].address = address;
      out.bytes = std::max(out.bytes, address + size);
      placed.push_back(t);
    }
    return true;
  }

  /// Where the tiles alive are most, with what they take.
  void measure(const std::vector<Place>& places, Occupation& out) const {
    int where = 0;
    for (const std::size_t t : tiles_) {
      const int begin = span(t, places[t]).begin;
      const std::int64_t sum = alive_at(places, begin);
      if (sum <= out.alive) continue;
      out.alive = sum;
      where = begin;
    }
    out.line = lives_.line_at(where);
    for (const std::size_t t : tiles_) {
      if (overlap(span(t, places[t]), {where, where})) out.tiles.push_back(static_cast<int>(t));
    }
  }
  [[nodiscard]] std::int64_t alive_at(const std::vector<Place>& places, int position) const {
    std::int64_t sum = 0;
    for (const std::size_t t : tiles_) {
      if (overlap(span(t, places[t]), {position, position}))
        sum += places[t].slot_bytes * places[t].depth;
    }
    return sum;
  }

  [[noreturn]] void refuse(const std::vector<Place>& places, Occupation& out) const {
    measure(places, out);
    std::vector<std::string> alive;
    for (const int t : out.tiles) {
      if (alive.size() == 8) {
        alive.push_back(fmt::format("and {} more", out.tiles.size() - alive.size()));
        break;
      }
      const auto tile = static_cast<std::size_t>(t);
      alive.push_back(fmt::format("{} ({})", document_.tensors[tile].text(), bytes(tile)));
    }
    const std::int64_t over = out.alive - capacity_;
    throw Error(
        ExitCode::kDoesNotFit,
        fmt::format("{}: {} does not hold the tiles that are alive there: {} bytes a partition of "
                    "{}{}; alive: {}. Nothing is spilled: use smaller tiles, or load them in the "
                    "loop that reads them",
                    out.line, space_ == isa::MemorySpace::kSbuf ? "SBUF" : "PSUM", out.alive,
                    capacity_, over > 0 ? fmt::format(", {} over", over) : ", in pieces",
                    fmt::join(alive, ", ")));
  }

  const Document& document_;
  const Lives& lives_;
  isa::MemorySpace space_;
  std::int64_t capacity_, unit_;
  std::vector<std::size_t> tiles_;  ///< largest first
};

}  // namespace

Placement place_tiles(const Document& document, const isa::Limits& limits) {
  Placement out;
  out.places.resize(document.tensors.size());
  const Lives lives(document);
  Memory(document, lives, isa::MemorySpace::kSbuf, limits.sbuf_bytes_per_partition, kAlignment)
      .place(out.places, out.sbuf);
  Memory(document, lives, isa::MemorySpace::kPsum, limits.psum_bytes_per_partition,
         limits.psum_bank_bytes)
      .place(out.places, out.psum);
  return out;
}

}  // namespace trellis::device::nki
