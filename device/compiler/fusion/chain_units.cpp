// Units: the steps of a chain that one instruction executes. They are neighbours whose results are
// only for the next one. Also which engine executes a unit.
#include <algorithm>

#include "device/compiler/fusion/chain_emitter.h"

namespace trellis::device {

using isa::Activation;
using isa::AluOp;
using isa::Engine;
using isa::Opcode;

namespace {

/// Scalar multiplies and adds numbers too.
bool on_scalar(AluOp alu) {
  return alu == AluOp::kNone || alu == AluOp::kAdd || alu == AluOp::kSubtract ||
         alu == AluOp::kReverseSubtract || alu == AluOp::kMultiply;
}

/// f(−x) = f(x).
bool is_even(Activation fn) { return fn == Activation::kSquare || fn == Activation::kAbs; }

}  // namespace

// ── which steps are one instruction ──

/// Numbers per row that one instruction takes together, (x ⊕ first) ⊗ second, lie side by side: an
/// instruction has one operand for both.
void ChainEmitter::find_pairs() {
  const auto is_column = [&](const Chain::Step& s) {
    return s.opcode == Opcode::kTensorTensor && on_scalar(s.alu) && !is_row(s.a) && is_row(s.b) &&
           !invariant(s.b);
  };
  for (std::size_t s = 0; by_columns() && s + 1 < chain_.steps.size(); ++s) {
    const auto &first = chain_.steps[s], &second = chain_.steps[s + 1];
    if (!is_column(first) || !is_column(second) || second.a != first.dst ||
        last_use_[static_cast<std::size_t>(first.dst)] != s + 1)
      continue;
    const bool known = second_of_.contains(second.b) || first_of_.contains(first.b);
    const bool elsewhere =
        second_of_.contains(first.b) || first_of_.contains(second.b) || first.b == second.b;
    const bool alike = chain_.values[static_cast<std::size_t>(first.b)].dtype ==
                       chain_.values[static_cast<std::size_t>(second.b)].dtype;
    if (known || elsewhere || !alike) continue;
    second_of_[second.b] = first.b;
    first_of_[first.b] = second.b;
  }
}

/// Step s takes a row's number away from x, only for the activation that follows.
bool ChainEmitter::is_shift(std::size_t s, std::size_t to) const {
  const auto& step = chain_.steps[s];
  if (s + 1 >= to || step.opcode != Opcode::kTensorTensor || step.alu != AluOp::kSubtract ||
      is_row(step.a) || !is_row(step.b))
    return false;
  const auto& next = chain_.steps[s + 1];
  return next.opcode == Opcode::kActivation && next.a == step.dst &&
         last_use_[static_cast<std::size_t>(step.dst)] == s + 1;
}

/// Steps s and s + 1 are (x ⊕ row) ⊗ row with numbers that lie side by side.
bool ChainEmitter::is_pair(std::size_t s, std::size_t to) const {
  if (s + 1 >= to || chain_.steps[s + 1].a != chain_.steps[s].dst ||
      last_use_[static_cast<std::size_t>(chain_.steps[s].dst)] != s + 1)
    return false;
  const auto second = first_of_.find(chain_.steps[s].b);
  return second != first_of_.end() && second->second == chain_.steps[s + 1].b &&
         !is_row(chain_.steps[s].dst);
}

/// x ⊕ number, or x ⊕ row.
bool ChainEmitter::is_affine(const Chain::Step& step) const {
  if (step.opcode == Opcode::kTensorScalar) return !is_row(step.dst);
  return step.opcode == Opcode::kTensorTensor && is_row(step.a) != is_row(step.b) &&
         (is_row(step.b) ? step.alu : exchanged(step.alu)) != AluOp::kNone;
}

/// The result of the steps before s is summed along the row by step s.
bool ChainEmitter::is_sum_of(std::size_t s, std::size_t to) const {
  if (s >= to || is_row(chain_.steps[s - 1].dst)) return false;
  const auto& step = chain_.steps[s];
  return step.opcode == Opcode::kTensorReduce && step.alu == AluOp::kAdd &&
         step.a == chain_.steps[s - 1].dst;
}

ChainEmitter::Unit ChainEmitter::unit_at(std::size_t s, std::size_t to) const {
  Unit unit{s, s, s + 1, false};
  const auto& step = chain_.steps[s];
  if (!by_columns() || ahead_.contains(step.dst) || constant_[static_cast<std::size_t>(step.dst)])
    return unit;
  if (step.opcode == Opcode::kTensorReduce) {
    // The mean: an activation's scale makes it of the sum.
    const bool more = engines_[s] == Engine::kScalar && s + 1 < to &&
                      last_use_[static_cast<std::size_t>(step.dst)] == s + 1;
    const auto& next = chain_.steps[more ? s + 1 : s];
    if (more && next.opcode == Opcode::kTensorScalar && next.alu == AluOp::kMultiply &&
        next.alu2 == AluOp::kNone)
      unit.end = s + 2;
    return unit;
  }
  if (is_shift(s, to) || is_pair(s, to)) unit.last = s + 1;
  const bool sums =
      chain_.steps[unit.last].opcode == Opcode::kActivation || unit.last != s || is_affine(step);
  unit.summed = sums && is_sum_of(unit.last + 1, to);
  unit.end = unit.last + (unit.summed ? 2 : 1);
  return unit;
}

// ── engines ──

/// Scalar takes steps that both can execute where Vector has more to do.
void ChainEmitter::choose_engines() {
  engines_.assign(chain_.steps.size(), Engine::kVector);
  double vector = 0, scalar = 0;
  std::vector<Unit> movable;
  for (Unit unit; unit.end < chain_.steps.size();) {
    unit = unit_at(unit.end, chain_.steps.size());
    const auto &step = chain_.steps[unit.first], &last = chain_.steps[unit.last];
    if ((is_row(step.dst) && step.opcode != Opcode::kTensorReduce) ||
        constant_[static_cast<std::size_t>(step.dst)])
      continue;
    if (can_move(step) && on_scalar(last.alu) && last.opcode != Opcode::kActivation) {
      movable.push_back(unit);
      continue;
    }
    const Work work = work_of(unit);
    // On some generations Vector cannot reach SBUF while GpSimd draws.
    if (work.engine == Engine::kVector || (work.engine == Engine::kGpSimd && gpsimd_stops_vector_))
      vector += work.passes;
    if (work.engine == Engine::kScalar) scalar += work.passes;
  }
  for (const Unit& unit : movable) {
    const double cost = work_of(unit).passes;
    const bool moves = scalar + planning_.chain_scalar_pass < vector + cost;
    (moves ? scalar : vector) += moves ? planning_.chain_scalar_pass : cost;
    if (moves)
      std::fill(engines_.begin() + static_cast<std::ptrdiff_t>(unit.first),
                engines_.begin() + static_cast<std::ptrdiff_t>(unit.end), Engine::kScalar);
  }
  follow_producers();
}

/// In passes of Vector over the elements.
ChainEmitter::Work ChainEmitter::work_of(const Unit& unit) const {
  const auto &step = chain_.steps[unit.first], &last = chain_.steps[unit.last];
  const auto narrow = [&](int v) {
    return v < 0 || isa::size_bytes(chain_.values[static_cast<std::size_t>(v)].dtype) == 2;
  };
  const bool few = is_row(step.dst) && step.opcode != Opcode::kTensorReduce;
  if (step.opcode == Opcode::kRandom) return {Engine::kGpSimd, planning_.chain_scalar_pass};
  if (last.opcode == Opcode::kActivation || engines_[unit.first] == Engine::kScalar)
    return {Engine::kScalar, few ? 0 : planning_.chain_scalar_pass};
  if (few) return {Engine::kVector, 0};
  const bool two = step.opcode == Opcode::kSelect ||
                   (step.opcode == Opcode::kTensorTensor && !(by_columns() && is_affine(step)));
  if (two)
    return {Engine::kVector, narrow(step.a) && narrow(step.b) && narrow(step.dst) &&
                                     step.opcode == Opcode::kTensorTensor
                                 ? 2 / std::max(2.0, fast_mode_)
                                 : 2};
  const bool fast = (can_move(step) && step.opcode != Opcode::kTensorReduce) && narrow(step.a) &&
                    narrow(last.dst);
  return {Engine::kVector, fast ? 1 / fast_mode_ : 1};
}

/// Vector's by default, but Scalar can do it.
bool ChainEmitter::can_move(const Chain::Step& step) const {
  if (step.opcode == Opcode::kTensorReduce)
    return by_columns() && step.alu == AluOp::kAdd && !is_row(step.a);
  const bool column = by_columns() && step.opcode == Opcode::kTensorTensor && is_affine(step);
  return (step.opcode == Opcode::kTensorScalar || step.opcode == Opcode::kTensorCopy || column) &&
         on_scalar(step.alu) && on_scalar(step.alu2);
}

/// A number per row is worked on where it was made: the other engine would have to finish its long
/// step first.
void ChainEmitter::follow_producers() {
  std::vector<bool> on(chain_.values.size(), false);  // value → made by Scalar
  for (Unit unit; unit.end < chain_.steps.size();) {
    unit = unit_at(unit.end, chain_.steps.size());
    const auto &step = chain_.steps[unit.first], &last = chain_.steps[unit.last];
    if (is_row(step.dst) && step.opcode == Opcode::kTensorScalar && can_move(step) &&
        on[static_cast<std::size_t>(step.a)])
      engines_[unit.first] = Engine::kScalar;
    for (std::size_t s = unit.first; s < unit.end; ++s) {
      on[static_cast<std::size_t>(chain_.steps[s].dst)] =
          last.opcode == Opcode::kActivation || engines_[unit.first] == Engine::kScalar;
    }
  }
}

// ── instructions ──

void ChainEmitter::run_unit(const Window& window, std::size_t s, std::size_t to) {
  if (ahead_.contains(chain_.steps[s].dst)) return;
  const Unit unit = unit_at(s, to);
  for (std::size_t i = s; i <= unit.last; ++i) {
    if (i == s) ensure(chain_.steps[i].a, window);
    ensure(chain_.steps[i].b, window);
  }
  const auto& step = chain_.steps[s];
  if (step.opcode == Opcode::kTensorReduce && engines_[s] == Engine::kScalar) {
    emit_sum(unit, window);
  } else if (chain_.steps[unit.last].opcode == Opcode::kActivation && unit.end != s + 1) {
    emit_activation(unit, window);
  } else if (unit.end != s + 1) {
    emit_affine(unit, window);
  } else {
    place(step.dst, window);
    emit_step(step, window);
  }
  for (; s < unit.end; ++s) {
    release(chain_.steps[s].a, s);
    if (chain_.steps[s].b != chain_.steps[s].a) release(chain_.steps[s].b, s);
  }
}

/// fn(x − row) with the sum of its rows. Only the bias is a number per row.
void ChainEmitter::emit_activation(const Unit& unit, const Window& window) {
  const auto &shift = chain_.steps[unit.first], &step = chain_.steps[unit.last];
  const int sum = unit.summed ? chain_.steps[unit.last + 1].dst : -1;
  if (!is_unread(unit)) place(step.dst, window);
  if (sum >= 0) place(sum, window);
  const bool shifted = unit.last != unit.first;
  const bool flipped = shifted && is_even(step.activation) && step.imm0 == 1 && step.imm1 == 0 &&
                       chain_.values[static_cast<std::size_t>(shift.b)].dtype == isa::DType::kFp32;
  const int rows = static_cast<int>(window.rows);
  const TileId bias = shifted && !flipped ? phase_.sbuf(4 * space_.group.size, 2) : isa::kNone;
  if (bias != isa::kNone)
    phase_.tensor_scalar(phase_.at(bias, isa::DType::kFp32, rows, row(space_.group.size)),
                         ref(shift.b, window), AluOp::kMultiply, -step.imm0, AluOp::kAdd,
                         step.imm1);
  for (std::int64_t g = 0; g < space_.group.size; ++g) {
    const Ref to = is_unread(unit) ? unread(step.dst, window) : member(step.dst, window, g),
              from = member(shift.a, window, g);
    if (!shifted) phase_.activation(step.activation, to, from, step.imm0, step.imm1);
    if (flipped)
      phase_.activation_column(step.activation, to, from, -1,
                               member(shift.b, window, g));  // f(row − x)
    if (bias != isa::kNone)
      phase_.activation_column(step.activation, to, from, step.imm0,
                               phase_.at(bias, isa::DType::kFp32, rows, row(1), g));
    if (sum >= 0) phase_.sum_rows_into(member(sum, window, g));
  }
}

/// (x ⊕ number) ⊗ number, with the sum of its rows.
void ChainEmitter::emit_affine(const Unit& unit, const Window& window) {
  const auto &step = chain_.steps[unit.first], &last = chain_.steps[unit.last];
  const int sum = unit.summed ? chain_.steps[unit.last + 1].dst : -1;
  if (!is_unread(unit)) place(last.dst, window);
  if (sum >= 0) place(sum, window);
  for (std::int64_t g = 0; g < space_.group.size; ++g) {
    const Ref to = is_unread(unit) ? unread(last.dst, window) : member(last.dst, window, g);
    if (step.opcode == Opcode::kTensorScalar) {
      phase_.tensor_scalar(to, member(step.a, window, g), step.alu, step.imm0, step.alu2, step.imm1,
                           engines_[unit.first]);
    } else {
      emit_column(step, unit.last != unit.first ? last.alu : AluOp::kNone, to, window, g);
    }
    if (sum >= 0) phase_.sum_rows_into(member(sum, window, g));
  }
}

/// x ⊕ row of one row of a group; `second`: with the number that lies after the row's.
void ChainEmitter::emit_column(const Chain::Step& step, AluOp second, const Ref& to,
                               const Window& window, std::int64_t g) {
  const bool b_row = is_row(step.b);
  Ref column = member(b_row ? step.b : step.a, window, g);
  if (second != AluOp::kNone)
    column = phase_.at(now_.tiles.at(step.b), column.pattern.dtype, static_cast<int>(window.rows),
                       {{space_.group.size, 2}}, g);
  phase_.tensor_column(to, member(b_row ? step.a : step.b, window, g),
                       b_row ? step.alu : exchanged(step.alu), column, second, 0, engine_of(step));
}

/// Sums of rows by Scalar: the sum next to a copy that no one reads.
void ChainEmitter::emit_sum(const Unit& unit, const Window& window) {
  const auto &step = chain_.steps[unit.first], &last = chain_.steps[unit.end - 1];
  place(last.dst, window);
  for (std::int64_t g = 0; g < space_.group.size; ++g) {
    phase_.activation(Activation::kIdentity, unread(step.a, window), member(step.a, window, g),
                      unit.end == unit.first + 1 ? 1 : last.imm0, 0);
    phase_.sum_rows_into(member(last.dst, window, g));
  }
}

// ── what is only summed ──

/// The unit's elements are only wanted for their sum. With one window they take the place of a
/// value, which others use again.
bool ChainEmitter::is_unread(const Unit& unit) const {
  const auto& first = chain_.steps[unit.first];
  if (first.opcode == Opcode::kTensorReduce) return engines_[unit.first] == Engine::kScalar;
  return paired_ && unit.summed &&
         last_use_[static_cast<std::size_t>(chain_.steps[unit.last].dst)] == unit.last + 1;
}

void ChainEmitter::find_unread() {
  unread_bytes_ = 0;
  for (Unit unit; unit.end < chain_.steps.size();) {
    unit = unit_at(unit.end, chain_.steps.size());
    const auto& first = chain_.steps[unit.first];
    const int value = first.opcode == Opcode::kTensorReduce ? first.a : chain_.steps[unit.last].dst;
    if (is_unread(unit))
      unread_bytes_ = std::max<std::int64_t>(
          unread_bytes_, isa::size_bytes(chain_.values[static_cast<std::size_t>(value)].dtype));
  }
}

/// All rows of a group, and all windows, write it over each other: only one engine does.
Ref ChainEmitter::unread(int like, const Window& window) const {
  return phase_.at(now_.unread, chain_.values[static_cast<std::size_t>(like)].dtype,
                   static_cast<int>(window.rows), row(window.width()));
}

// ── instructions of one step ──

void ChainEmitter::emit_binary(const Chain::Step& step, const Window& window) {
  const Ref dst = ref(step.dst, window);
  if (is_row(step.a) == is_row(step.b))
    return phase_.tensor_tensor(step.alu, dst, ref(step.a, window), ref(step.b, window));
  if (!is_affine(step) || !by_columns())
    return phase_.tensor_tensor(step.alu, dst, broadcast(step.a, window),
                                broadcast(step.b, window));
  for (std::int64_t g = 0; g < space_.group.size; ++g)
    emit_column(step, AluOp::kNone, member(step.dst, window, g), window, g);
}

}  // namespace trellis::device
