#include "device/compiler/fusion/chain_emitter.h"

#include <algorithm>

/// Reductions whose result is not a column next to the rows: sums over leading dimensions and
/// reductions to one element.
namespace trellis::device {

using isa::AluOp;
using isa::DType;
using isa::Engine;
using isa::Opcode;

namespace {

constexpr std::int64_t kP = 128;
constexpr std::int64_t kBank = 512;
// Little is done with a block of rows: more of them are on their way than are worked on, or each
// would wait for a transfer's latency.
constexpr Slots kAhead{2, 4, 2};

const Chain::Step* reduction_at(const Chain& chain, std::size_t s) {
  return chain.steps[s].opcode == Opcode::kTensorReduce ? &chain.steps[s] : nullptr;
}

/// The steps after the reductions, on [rows, width] results that `tiles` hold.
class Tail {
 public:
  Tail(Phase& phase, const Chain& chain, std::int64_t width)
      : phase_(phase), chain_(chain), width_(width), tiles_(chain.values.size(), isa::kNone) {}
  void set(int value, TileId tile) { tiles_[static_cast<std::size_t>(value)] = tile; }

  Ref ref(int value) const {
    return phase_.at(tiles_[static_cast<std::size_t>(value)],
                     chain_.values[static_cast<std::size_t>(value)].dtype, 1, row(width_));
  }

  void run() {
    for (std::size_t s = chain_.split; s < chain_.steps.size(); ++s) {
      const auto& step = chain_.steps[s];
      set(step.dst, phase_.sbuf(width_ * 4));
      switch (step.opcode) {
        case Opcode::kTensorTensor:
          phase_.tensor_tensor(step.alu, ref(step.dst), ref(step.a), ref(step.b));
          break;
        case Opcode::kTensorScalar:
          phase_.tensor_scalar(ref(step.dst), ref(step.a), step.alu, step.imm0, step.alu2,
                               step.imm1);
          break;
        case Opcode::kActivation:
          phase_.activation(step.activation, ref(step.dst), ref(step.a), step.imm0, step.imm1);
          break;
        case Opcode::kTensorCopy: phase_.copy(Engine::kScalar, ref(step.dst), ref(step.a)); break;
        default: TRELLIS_CHECK(false, "a step after a reduction is not element-wise");
      }
    }
  }

 private:
  Phase& phase_;
  const Chain& chain_;
  std::int64_t width_;
  std::vector<TileId> tiles_;
};

/// The chain without its reductions, over a space whose rows are the reduced dimensions.
struct Parts {
  Chain body;
  std::vector<const Chain::Step*> reductions;
};

Parts cut_body(const Chain& chain) {
  Parts parts;
  parts.body = chain;
  parts.body.terminal = false;
  parts.body.steps.clear();
  parts.body.outputs.clear();
  for (std::size_t s = 0; s < chain.split; ++s) {
    if (const auto* r = reduction_at(chain, s)) {
      parts.reductions.push_back(r);
    } else {
      parts.body.steps.push_back(chain.steps[s]);
    }
  }
  // Values of the body that are results as well; the others come from the tail.
  for (const auto& o : chain.outputs) {
    const bool in_body = std::any_of(parts.body.steps.begin(), parts.body.steps.end(),
                                     [&](const auto& s) { return s.dst == o.value; });
    if (in_body) parts.body.outputs.push_back(o);
  }
  return parts;
}

bool is_body_output(const Parts& parts, const Chain::Output& o) {
  return std::any_of(parts.body.outputs.begin(), parts.body.outputs.end(),
                     [&](const auto& x) { return x.value == o.value; });
}

// ── sum over leading dimensions: onesᵀ · x on the Tensor engine ──

class ColumnSums {
 public:
  ColumnSums(ProgramBuilder& builder, std::uint32_t kernel, const Chain& chain)
      : builder_(builder), chain_(chain), parts_(cut_body(chain)), phase_(kernel) {}

  void run() {
    // Rows: the reduced dimensions; columns: the kept ones.
    Chain& body = parts_.body;
    const std::vector<bool> mask = chain_.reduced;
    body.reduced.assign(mask.size(), false);
    for (std::size_t d = 0; d < mask.size(); ++d) body.reduced[d] = !mask[d];
    for (const auto& o : chain_.outputs) {
      if (!is_body_output(parts_, o)) results_.push_back(o);
    }
    const std::int64_t fit = builder_.sbuf_bytes() / 2 / (bytes_per_column(body, kAhead) + 16);
    const std::size_t stored = body.outputs.size();
    for (const auto& o : results_)
      body.outputs.push_back(o);  // their strides are planned with the rest
    const std::int64_t banks =
        std::clamp<std::int64_t>(8 / static_cast<std::int64_t>(parts_.reductions.size()), 1, 4);
    const std::int64_t width =
        std::clamp<std::int64_t>(fit / kBank * kBank, kBank / 4, banks * kBank);
    space_ = plan_space(body, width);
    // The operands of reductions must not be recycled, and results are no stores of the body.
    body.outputs.resize(stored);
    for (const auto* r : parts_.reductions) body.outputs.push_back({r->a, 0, DType::kFp32, 0, {}});
    ChainEmitter emitter(phase_, body, space_, builder_.core(), kAhead);
    emitter_ = &emitter;
    stored_ = stored;
    ones_ = phase_.sbuf(4);
    phase_.memset(phase_.at(ones_, DType::kFp32, kP, row(1)), 1);
    Window window;
    outer_columns(window, width);
    builder_.append(std::move(phase_));
  }

 private:
  /// Kept dimensions that do not merge: the outer ones are loops.
  void outer_columns(Window& window, std::int64_t width) {
    const std::size_t d = window.columns.size();
    if (d + 1 < space_.columns.size()) {
      phase_.loop(space_.columns[d].size, [&](Index i) {
        window.columns.push_back(std::move(i));
        window.column_sizes.push_back(1);
        outer_columns(window, width);
        window.columns.pop_back();
        window.column_sizes.pop_back();
      });
      return;
    }
    phase_.tiles(space_.columns[d].size, width, [&](const Index& c0, std::int64_t cols) {
      Window w = window;
      w.columns.push_back(c0);
      w.column_sizes.push_back(cols);
      columns_block(w, cols);
    });
  }

  void columns_block(Window& w, std::int64_t cols) {
    std::vector<TileId> sums;
    for (std::size_t r = 0; r < parts_.reductions.size(); ++r) {
      sums.push_back(phase_.sbuf(cols * 4));
      if (!space_.loops.empty())
        phase_.memset(phase_.at(sums.back(), DType::kFp32, 1, row(cols)), 0);
    }
    walk(0, w, sums, cols);
    finish(w, sums, cols);
    emitter_->start_window();
  }

  void walk(std::size_t depth, Window& w, const std::vector<TileId>& sums, std::int64_t cols) {
    if (depth < space_.loops.size()) {
      phase_.loop(space_.loops[depth].size, [&](Index i) {
        w.loops.push_back(std::move(i));
        walk(depth + 1, w, sums, cols);
        w.loops.pop_back();
      });
      return;
    }
    std::vector<TileId> banks;
    for (std::size_t i = 0;
         i < parts_.reductions.size() * static_cast<std::size_t>((cols + kBank - 1) / kBank); ++i)
      banks.push_back(phase_.psum());
    const std::int64_t full = space_.rows.size / kP;
    phase_.tiles(space_.rows.size, kP, [&](const Index& r0, std::int64_t rows) {
      w.row = r0;
      w.rows = rows;
      emitter_->start_window();
      emitter_->run_steps(w, 0, parts_.body.steps.size());
      for (std::size_t o = 0; o < stored_; ++o) emitter_->store_output(o, w);
      accumulate(w, banks, cols, rows == kP ? full > 1 : full > 0, rows == kP && full > 1);
    });
    for_each_bank(banks, cols, [&](std::size_t r, TileId bank, std::int64_t c, std::int64_t n) {
      const Ref sum = phase_.at(sums[r], DType::kFp32, 1, row(n), c),
                part = phase_.at(bank, DType::kFp32, 1, row(n));
      if (space_.loops.empty()) return phase_.copy(Engine::kVector, sum, part);
      phase_.tensor_tensor(AluOp::kAdd, sum, sum, part);
    });
  }

  template <typename Body>
  void for_each_bank(const std::vector<TileId>& banks, std::int64_t cols, Body body) {
    std::size_t i = 0;
    for (std::size_t r = 0; r < parts_.reductions.size(); ++r) {
      for (std::int64_t c = 0; c < cols; c += kBank)
        body(r, banks[i++], c, std::min(kBank, cols - c));
    }
  }

  void accumulate(const Window& w, const std::vector<TileId>& banks, std::int64_t cols,
                  bool accumulate, bool overwrite_first) {
    for_each_bank(banks, cols, [&](std::size_t r, TileId bank, std::int64_t c, std::int64_t n) {
      const int value = parts_.reductions[r]->a;
      Ref x = emitter_->wide(value, w);
      if (x.pattern.dims[0].stride != 0) x.index = x.index + Index(c);
      x.pattern.dims[0].count = static_cast<std::int32_t>(n);
      Ref ones = phase_.at(ones_, DType::kFp32, static_cast<int>(w.rows), row(1));
      phase_.matmul(phase_.at(bank, DType::kFp32, 1, row(n)), ones, x, accumulate, overwrite_first);
    });
  }

  void finish(const Window& w, const std::vector<TileId>& sums, std::int64_t cols) {
    Tail tail(phase_, chain_, cols);
    for (std::size_t r = 0; r < sums.size(); ++r)
      tail.set(parts_.reductions[r]->dst, to_dtype(sums[r], parts_.reductions[r]->dst, cols));
    tail.run();
    std::size_t inputs = 0;
    for (const auto& v : chain_.values) inputs += v.input ? 1 : 0;
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const std::size_t operand = inputs + stored_ + i;
      Dims dims;
      Index offset = results_[i].offset;
      for (std::size_t c = 0; c < space_.columns.size(); ++c) {
        const auto& column = space_.columns[c];
        dims.push_back({column.strides[operand], static_cast<std::int32_t>(w.column_sizes[c])});
        offset = offset + w.columns[c] * column.strides[operand];
      }
      phase_.store(Phase::hbm(results_[i].buffer, results_[i].dtype, 1, 0, dims, offset),
                   tail.ref(results_[i].value));
    }
  }

  TileId to_dtype(TileId sum, int value, std::int64_t cols) {
    const DType dtype = chain_.values[static_cast<std::size_t>(value)].dtype;
    if (dtype == DType::kFp32) return sum;
    const TileId cast = phase_.sbuf(cols * isa::size_bytes(dtype));
    phase_.copy(Engine::kVector, phase_.at(cast, dtype, 1, row(cols)),
                phase_.at(sum, DType::kFp32, 1, row(cols)));
    return cast;
  }

  ProgramBuilder& builder_;
  const Chain& chain_;
  Parts parts_;
  Phase phase_;
  ChainSpace space_;
  ChainEmitter* emitter_ = nullptr;
  std::vector<Chain::Output> results_;
  std::size_t stored_ = 0;
  TileId ones_ = 0;
};

// ── reduction to one element ──

class FullReduction {
 public:
  FullReduction(ProgramBuilder& builder, std::uint32_t kernel, const Chain& chain)
      : builder_(builder), chain_(chain), parts_(cut_body(chain)), phase_(kernel) {}

  void run() {
    Chain& body = parts_.body;
    body.reduced.clear();
    const std::size_t stored = body.outputs.size();
    const std::int64_t fit = builder_.sbuf_bytes() / 2 / bytes_per_column(body, {2});
    const std::int64_t width = std::clamp<std::int64_t>(fit / 64 * 64, 64, 2048);
    const ChainSpace space = plan_space(body, width);
    for (const auto* r : parts_.reductions) body.outputs.push_back({r->a, 0, DType::kFp32, 0, {}});
    ChainEmitter emitter(phase_, body, space, builder_.core());
    std::vector<TileId> partial;
    for (const auto* r : parts_.reductions) {
      partial.push_back(phase_.sbuf(4));
      phase_.memset(phase_.at(partial.back(), DType::kFp32, kP, row(1)),
                    reduction_identity(r->alu));
    }
    emitter.for_each_window(width, [&](const Window& w) {
      emitter.start_window();
      emitter.run_steps(w, 0, body.steps.size());
      for (std::size_t o = 0; o < stored; ++o) emitter.store_output(o, w);
      for (std::size_t r = 0; r < partial.size(); ++r) {
        phase_.reduce(parts_.reductions[r]->alu,
                      phase_.at(partial[r], DType::kFp32, static_cast<int>(w.rows), row(1)),
                      emitter.wide(parts_.reductions[r]->a, w), true);
      }
    });
    finish(partial);
    builder_.append(std::move(phase_));
  }

 private:
  /// Across partitions: a column becomes a row on the Tensor engine, then the row is reduced.
  void finish(const std::vector<TileId>& partial) {
    Tail tail(phase_, chain_, 1);
    for (std::size_t r = 0; r < partial.size(); ++r) {
      const auto& step = *parts_.reductions[r];
      const DType dtype = chain_.values[static_cast<std::size_t>(step.dst)].dtype;
      const Ref transposed = phase_.at(phase_.psum(), DType::kFp32, 1, row(kP));
      phase_.transpose(transposed, phase_.at(partial[r], DType::kFp32, kP, row(1)));
      const TileId result = phase_.sbuf(4);
      phase_.reduce(step.alu, phase_.at(result, dtype, 1, row(1)), transposed);
      tail.set(step.dst, result);
    }
    tail.run();
    for (const auto& o : chain_.outputs) {
      if (is_body_output(parts_, o)) continue;
      phase_.store(Phase::hbm(o.buffer, o.dtype, 1, 0, row(1), Index(o.offset)), tail.ref(o.value));
    }
  }

  ProgramBuilder& builder_;
  const Chain& chain_;
  Parts parts_;
  Phase phase_;
};

}  // namespace

void lower_terminal(ProgramBuilder& builder, std::uint32_t kernel, const Chain& chain) {
  bool everything = true;
  for (std::size_t d = 0; d < chain.sizes.size(); ++d)
    everything = everything && (chain.reduced[d] || chain.sizes[d] == 1);
  if (everything) {
    FullReduction(builder, kernel, chain).run();
  } else {
    ColumnSums(builder, kernel, chain).run();
  }
}

}  // namespace trellis::device
