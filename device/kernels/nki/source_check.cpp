#include "device/kernels/nki/source_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace trellis::device::nki {
namespace {

using isa::MemorySpace;
using isa::Opcode;

constexpr std::int64_t kMostWork = 1'000'000'000;  ///< elements that are visited
constexpr std::int64_t kMostElements = 200'000'000;
constexpr std::size_t kMostMistakes = 32;
constexpr int kMostDepth = 8;

/// An execution of an instruction that wrote something.
struct Event {
  const Step* step = nullptr;
  std::array<std::int32_t, kMostDepth> iteration{};
};

/// A tensor's elements: the event that wrote each last; 0: none.
struct Shadow {
  std::vector<int> borders;  ///< partitions at which a class of equal ones begins
  std::int64_t row = 0;      ///< elements of a partition
  std::vector<std::int32_t> writer;
  std::vector<std::uint8_t> read;  ///< PSUM: since it was written
  std::int32_t birth = 0;          ///< events before it belong to an earlier iteration
};

bool same(const Operand& a, const Operand& b) {
  return a.tensor == b.tensor && a.offset == b.offset && a.loops == b.loops &&
         a.first_partition == b.first_partition && a.partitions == b.partitions && a.dims == b.dims;
}

class Checker {
 public:
  explicit Checker(const Document& document)
      : document_(document), shadows_(document.tensors.size()), events_(1) {}

  SourceCheck run() {
    SourceCheck out;
    std::map<int, std::set<int>> borders;
    if (depth(document_.body) > kMostDepth || work(document_.body, borders) > kMostWork) return out;
    std::int64_t elements = 0;
    for (const auto& [tensor, starts] : borders) elements += prepare(tensor, starts);
    if (elements > kMostElements) return out;
    walk(document_.body);
    find_missing();
    out.done = true;
    out.mistakes = std::move(mistakes_);
    return out;
  }

 private:
  static int depth(const std::vector<Step>& steps) {
    int deepest = 0;
    for (const Step& s : steps) {
      if (s.loop != 0) deepest = std::max(deepest, 1 + depth(s.body));
    }
    return deepest;
  }

  std::int64_t work(const std::vector<Step>& steps, std::map<int, std::set<int>>& borders) const {
    std::int64_t sum = 0;
    for (const Step& s : steps) {
      if (s.loop != 0) sum += s.count * work(s.body, borders);
      for (const Operand& o : s.operands) {
        if (!o.present()) continue;
        const bool hbm = tensor(o).space == MemorySpace::kHbm;
        if (tensor(o).kind == "input" || tensor(o).kind == "const") continue;
        std::set<int>& starts = borders[o.tensor];
        starts.insert(0);
        if (!hbm) starts.insert({o.first_partition, o.first_partition + o.partitions});
        sum += o.free_elements() * (hbm ? o.partitions : 1);
      }
    }
    return sum;
  }

  std::int64_t prepare(int id, const std::set<int>& starts) {
    const Tensor& t = document_.tensors[static_cast<std::size_t>(id)];
    Shadow& s = shadows_[static_cast<std::size_t>(id)];
    s.borders.assign(starts.begin(), starts.end());
    s.row = t.bytes / isa::size_bytes(t.dtype);
    const auto size = static_cast<std::size_t>(s.row) * s.borders.size();
    // Inputs and constants have their values before the kernel starts.
    if (t.kind != "input" && t.kind != "const") s.writer.assign(size, 0);
    if (t.space == MemorySpace::kPsum) s.read.assign(size, 1);
    return static_cast<std::int64_t>(size);
  }

  [[nodiscard]] const Tensor& tensor(const Operand& o) const {
    return document_.tensors[static_cast<std::size_t>(o.tensor)];
  }

  void walk(const std::vector<Step>& steps) {
    for (const Step& s : steps) {
      if (s.loop == 0) {
        execute(s);
        continue;
      }
      loops_.push_back(&s);
      iteration_.push_back(0);
      for (std::int64_t i = 0; i < s.count; ++i) {
        iteration_.back() = static_cast<std::int32_t>(i);
        begin_iteration(s.loop);
        walk(s.body);
      }
      loops_.pop_back();
      iteration_.pop_back();
    }
  }

  /// The tiles of this loop are new.
  void begin_iteration(int loop) {
    for (std::size_t t = 0; t < shadows_.size(); ++t) {
      const Tensor& tensor = document_.tensors[t];
      if (tensor.space != MemorySpace::kHbm && tensor.home == loop)
        shadows_[t].birth = static_cast<std::int32_t>(events_.size());
    }
  }

  /// visit(place in the shadow) for each element of the operand, until it returns false.
  template <typename Visit>
  void each(const Operand& o, Visit visit) const {
    const Shadow& s = shadows_[static_cast<std::size_t>(o.tensor)];
    std::int64_t start = o.offset;
    for (const auto& [loop, stride] : o.loops) {
      for (std::size_t l = 0; l < loops_.size(); ++l) {
        if (loops_[l]->loop == loop) start += stride * iteration_[l];
      }
    }
    std::array<isa::Dim, isa::kMaxFreeDims> dims{};
    const std::size_t pad = dims.size() - o.dims.size();
    std::copy(o.dims.begin(), o.dims.end(), dims.begin() + static_cast<std::ptrdiff_t>(pad));
    const bool hbm = tensor(o).space == MemorySpace::kHbm;
    const std::int64_t rows = hbm ? o.partitions : static_cast<std::int64_t>(s.borders.size());
    for (std::int64_t p = 0; p < rows; ++p) {
      std::int64_t base = start + (hbm ? p * o.partition_stride : p * s.row);
      if (!hbm) {
        const int border = s.borders[static_cast<std::size_t>(p)];
        if (border < o.first_partition || border >= o.first_partition + o.partitions) continue;
      }
      for (std::int64_t a = 0; a < dims[0].count; ++a) {
        for (std::int64_t b = 0; b < dims[1].count; ++b) {
          for (std::int64_t c = 0; c < dims[2].count; ++c) {
            const std::int64_t at =
                base + a * dims[0].stride + b * dims[1].stride + c * dims[2].stride;
            for (std::int64_t d = 0; d < dims[3].count; ++d) {
              if (!visit(static_cast<std::size_t>(at + d * dims[3].stride))) return;
            }
          }
        }
      }
    }
  }

  [[nodiscard]] bool adds(const Step& s) const {
    return s.accumulate && !(s.overwrite_first && !iteration_.empty() && iteration_.back() == 0);
  }

  void execute(const Step& s) {
    const bool sum = s.alu == isa::AluOp::kAdd || s.alu == isa::AluOp::kMax ||
                     s.alu == isa::AluOp::kMin || s.alu == isa::AluOp::kMultiply;
    for (const int role : {kSrc0, kSrc1}) {
      const Operand& o = s.operands[static_cast<std::size_t>(role)];
      if (o.present()) read(s, o, sum && same(o, s.operands[kDst]));
    }
    const Operand& dst = s.operands[kDst];
    if (dst.present() && adds(s)) read(s, dst, true);
    events_.push_back({&s, {}});
    for (std::size_t l = 0; l < iteration_.size(); ++l) events_.back().iteration[l] = iteration_[l];
    if (dst.present()) write(s, dst);
    if (s.operands[kDst1].present()) write(s, s.operands[kDst1]);
  }

  void read(const Step& s, const Operand& o, bool is_sum) {
    Shadow& shadow = shadows_[static_cast<std::size_t>(o.tensor)];
    if (shadow.writer.empty()) return;
    std::int32_t last = -1;
    each(o, [&](std::size_t at) {
      const std::int32_t event = shadow.writer[at];
      if (!shadow.read.empty()) shadow.read[at] = 1;
      if (event == last) return true;
      last = event;
      if (event == 0 || event < shadow.birth) return unwritten(s, o, shadow, at);
      return is_sum || !carried(s, o, events_[static_cast<std::size_t>(event)]);
    });
  }

  bool unwritten(const Step& s, const Operand& o, const Shadow& shadow, std::size_t at) {
    const auto row = static_cast<std::size_t>(shadow.row);
    const bool hbm = tensor(o).space == MemorySpace::kHbm;
    const std::string place =
        hbm ? fmt::format("element {}", at)
            : fmt::format("partition {}, element {}", shadow.borders[at / row], at % row);
    add("unwritten", s.line,
        fmt::format("reads {} at {}, which was never written", tensor(o).text(), place));
    return false;
  }

  /// The value is another iteration's, although the loop says that none depends on another.
  bool carried(const Step& s, const Operand& o, const Event& from) {
    for (std::size_t l = 0; l < loops_.size(); ++l) {
      if (from.iteration[l] == iteration_[l]) continue;
      if (!contains(*loops_[l], from.step) || !loops_[l]->affine) return false;
      add("carried", s.line,
          fmt::format(
              "reads {} as another iteration of the affine_range of {} wrote it in {}: they "
              "may run in any order (nl.sequential_range keeps it)",
              tensor(o).text(), loops_[l]->line, from.step->line));
      return true;
    }
    return false;
  }

  bool contains(const Step& loop, const Step* step) {
    const auto key = std::make_pair(&loop, step);
    const auto known = contains_.find(key);
    if (known != contains_.end()) return known->second;
    bool found = false;
    for (const Step& inner : loop.body)
      found = found || &inner == step || (inner.loop != 0 && contains(inner, step));
    return contains_[key] = found;
  }

  void write(const Step& s, const Operand& o) {
    Shadow& shadow = shadows_[static_cast<std::size_t>(o.tensor)];
    if (shadow.writer.empty()) return;
    const auto event = static_cast<std::int32_t>(events_.size() - 1);
    const bool product = s.opcode == Opcode::kMatmul && !shadow.read.empty() && !adds(s);
    bool lost = false;
    const Event* before = nullptr;
    each(o, [&](std::size_t at) {
      const std::int32_t old = shadow.writer[at];
      if (product && !lost && old != 0 && old >= shadow.birth && shadow.read[at] == 0) {
        before = &events_[static_cast<std::size_t>(old)];
        lost = before->step->opcode == Opcode::kMatmul;
      }
      shadow.writer[at] = event;
      if (!shadow.read.empty()) shadow.read[at] = 0;
      return true;
    });
    if (lost)
      add("overwritten", s.line,
          fmt::format("overwrites {}, which {} computed and which was never read", tensor(o).text(),
                      before->step->line));
  }

  void find_missing() {
    for (const int id : document_.outputs) {
      const Shadow& shadow = shadows_[static_cast<std::size_t>(id)];
      const Tensor& t = document_.tensors[static_cast<std::size_t>(id)];
      if (t.kind == "input") continue;
      const auto missing = std::count(shadow.writer.begin(), shadow.writer.end(), 0);
      if (missing == 0 && !shadow.writer.empty()) continue;
      const auto first = std::find(shadow.writer.begin(), shadow.writer.end(), 0);
      add("missing_store", t.line,
          fmt::format("{} of {} elements of the output {} are never written, the first is element "
                      "{}",
                      shadow.writer.empty() ? shadow.row : missing,
                      t.bytes / isa::size_bytes(t.dtype), t.text(), first - shadow.writer.begin()));
    }
  }

  void add(const std::string& kind, const std::string& line, const std::string& text) {
    if (mistakes_.size() < kMostMistakes && seen_.emplace(kind, line).second)
      mistakes_.push_back({kind, line, text});
  }

  const Document& document_;
  std::vector<Shadow> shadows_;
  std::vector<Event> events_;
  std::vector<const Step*> loops_;
  std::vector<std::int32_t> iteration_;
  std::map<std::pair<const Step*, const Step*>, bool> contains_;
  std::set<std::pair<std::string, std::string>> seen_;
  std::vector<Mistake> mistakes_;
};

}  // namespace

SourceCheck check_source(const Document& document) { return Checker(document).run(); }

}  // namespace trellis::device::nki
