#include "device/compiler/fusion/chain_emitter.h"

#include <algorithm>
#include <set>

namespace trellis::device {

using isa::AluOp;
using isa::Engine;
using isa::Opcode;

namespace {
constexpr std::size_t kNever = static_cast<std::size_t>(-1);

}  // namespace

double reduction_identity(AluOp alu) {
  switch (alu) {
    case AluOp::kMax: return -3.4028234663852886e38;
    case AluOp::kMin: return 3.4028234663852886e38;
    case AluOp::kMultiply:
    case AluOp::kAnd: return 1;
    default: return 0;
  }
}

std::int64_t Window::width() const {
  std::int64_t n = 1;
  for (std::int64_t c : column_sizes) n *= c;
  return n;
}

namespace {

/// Values with one element per row.
std::vector<bool> of_rows(const Chain& chain) {
  std::vector<bool> row(chain.values.size(), false);
  const bool reduces = std::count(chain.reduced.begin(), chain.reduced.end(), true) > 0;
  for (std::size_t v = 0; reduces && v < chain.values.size(); ++v) {
    row[v] = chain.values[v].input;
    for (std::size_t d = 0; row[v] && d < chain.sizes.size(); ++d)
      row[v] = !chain.reduced[d] || chain.values[v].strides[d] == 0 || chain.sizes[d] == 1;
  }
  for (const auto& s : chain.steps) {
    const auto is_row = [&](int v) { return v < 0 || row[static_cast<std::size_t>(v)]; };
    row[static_cast<std::size_t>(s.dst)] =
        reduces && (s.opcode == Opcode::kTensorReduce || (s.a >= 0 && is_row(s.a) && is_row(s.b)));
  }
  return row;
}

}  // namespace

std::int64_t bytes_per_column(const Chain& chain, const Slots& slots) {
  const std::vector<bool> row = of_rows(chain);
  std::set<int> stored;
  for (const auto& o : chain.outputs) stored.insert(o.value);
  std::vector<std::size_t> last(chain.values.size(), 0);
  for (std::size_t s = 0; s < chain.steps.size(); ++s) {
    for (int v : {chain.steps[s].a, chain.steps[s].b}) {
      if (v >= 0) last[static_cast<std::size_t>(v)] = s;
    }
  }
  std::int64_t fixed = 0, peak = 0, live = 0;
  for (std::size_t v = 0; v < chain.values.size(); ++v) {
    const bool output = stored.contains(static_cast<int>(v));
    if (!row[v] && (chain.values[v].input || output))
      fixed += (output ? slots.stores : slots.loads) *
               std::max(isa::size_bytes(chain.values[v].dtype), 2);
  }
  for (std::size_t s = 0; s < chain.steps.size(); ++s) {
    const auto& step = chain.steps[s];
    const auto temporary = [&](int v) {
      return v >= 0 && !row[static_cast<std::size_t>(v)] &&
             !chain.values[static_cast<std::size_t>(v)].input && !stored.contains(v);
    };
    const auto bytes = [&](int v) {
      return isa::size_bytes(chain.values[static_cast<std::size_t>(v)].dtype) * slots.values;
    };
    if (temporary(step.dst)) peak = std::max(peak, live += bytes(step.dst));
    for (int v : {step.a, step.b == step.a ? -1 : step.b}) {
      if (temporary(v) && last[static_cast<std::size_t>(v)] == s) live -= bytes(v);
    }
  }
  // Tiles are reused among values of one size only: three sizes in use cost at most this much more.
  return fixed + peak + 8;
}

ChainEmitter::ChainEmitter(Phase& phase, const Chain& chain, const ChainSpace& space,
                           const sim::CoreConfig& core, const Slots& slots)
    : phase_(phase),
      chain_(chain),
      space_(space),
      slots_(slots),
      operand_of_(chain.values.size(), -1) {
  int n = 0;
  for (std::size_t v = 0; v < chain.values.size(); ++v) {
    if (chain.values[v].input) operand_of_[v] = n++;
  }
  classify();
  find_last_uses(0, chain.steps.size());
  find_pairs();
  planning_ = core.planning;
  fast_mode_ = std::max(1.0, core.vector.bf16_speedup);
  gpsimd_stops_vector_ = core.costs.vector_gpsimd_share_sbuf;
  choose_engines();
}

Engine ChainEmitter::engine_of(const Chain::Step& step) const {
  return engines_[static_cast<std::size_t>(&step - chain_.steps.data())];
}

void ChainEmitter::classify() {
  row_.assign(chain_.values.size(), false);
  stage_.assign(chain_.values.size(), 0);
  constant_.assign(chain_.values.size(), false);
  for (std::size_t v = 0; v < chain_.values.size(); ++v) {
    if (operand_of_[v] < 0) continue;
    row_[v] = std::all_of(space_.columns.begin(), space_.columns.end(), [&](const auto& c) {
      return c.size == 1 || c.strides[static_cast<std::size_t>(operand_of_[v])] == 0;
    });
  }
  for (const auto& step : chain_.steps) {
    bool row = true;
    int stage = 0;
    for (int v : {step.a, step.b}) {
      if (v < 0) continue;
      row = row && row_[static_cast<std::size_t>(v)];
      stage = std::max(stage, stage_[static_cast<std::size_t>(v)]);
    }
    const bool reduce = step.opcode == Opcode::kTensorReduce;
    row_[static_cast<std::size_t>(step.dst)] = (row && step.opcode != Opcode::kRandom) || reduce;
    stage_[static_cast<std::size_t>(step.dst)] = stage + (reduce ? 1 : 0);
    const auto constant = [&](int v) {
      return v < 0 || invariant(v) || constant_[static_cast<std::size_t>(v)];
    };
    constant_[static_cast<std::size_t>(step.dst)] =
        step.a >= 0 && constant(step.a) && constant(step.b) && !row && !reduce;
  }
}

void ChainEmitter::find_last_uses(std::size_t from, std::size_t to) {
  last_use_.assign(chain_.values.size(), kNever);
  for (std::size_t s = from; s < to; ++s) {
    for (int v : {chain_.steps[s].a, chain_.steps[s].b}) {
      if (v >= 0) last_use_[static_cast<std::size_t>(v)] = s;
    }
  }
  for (const auto& o : chain_.outputs) last_use_[static_cast<std::size_t>(o.value)] = kNever;
}

void ChainEmitter::for_each_loop(std::size_t depth, std::int64_t stride, Window& window,
                                 const std::function<void(Window&)>& body) {
  if (depth == space_.loops.size()) return body(window);
  const std::int64_t step = depth + 1 == space_.loops.size() ? stride : 1;
  phase_.loop(space_.loops[depth].size / step, [&](const Index& i) {
    window.loops.push_back(i * step);
    for_each_loop(depth + 1, stride, window, body);
    window.loops.pop_back();
  });
}

void ChainEmitter::for_each_columns(std::int64_t width, Window& window,
                                    const std::function<void(Window&)>& body) {
  window.columns.assign(space_.columns.size(), Index(0));
  window.column_sizes.clear();
  for (const auto& c : space_.columns) window.column_sizes.push_back(c.size);
  if (space_.width() <= width) return body(window);
  // Outer column dimensions become loops, the last one is cut.
  std::function<void(std::size_t)> walk = [&](std::size_t d) {
    if (d + 1 == space_.columns.size()) {
      phase_.tiles(space_.columns[d].size, width, [&](const Index& c0, std::int64_t cols) {
        window.columns[d] = c0;
        window.column_sizes[d] = cols;
        body(window);
      });
      return;
    }
    phase_.loop(space_.columns[d].size, [&](Index i) {
      window.columns[d] = std::move(i);
      window.column_sizes[d] = 1;
      walk(d + 1);
    });
  };
  walk(0);
}

void ChainEmitter::for_each_row(Window& window, const std::function<void(Window&)>& body) {
  phase_.tiles(space_.rows.size, kPartitions, [&](const Index& r0, std::int64_t rows) {
    window.row = r0;
    window.rows = rows;
    body(window);
  });
}

void ChainEmitter::for_each_window(std::int64_t width,
                                   const std::function<void(const Window&)>& body) {
  Window window;
  for_each_loop(0, 1, window, [&](Window& w) {
    for_each_columns(width, w, [&](Window& x) {
      load_invariant(x);
      for_each_row(x, [&](Window& y) { body(y); });
      start_window();
      now_.tiles.clear();
    });
  });
  remainder(body);
}

/// Runs `body` on the rest of a one-dimensional space after its rows.
void ChainEmitter::remainder(const std::function<void(const Window&)>& body) {
  if (space_.remainder == 0) return;
  phase_.scope([&] {
    Window window;
    window.row = space_.rows.size;
    window.rows = 1;
    window.columns = {Index(0)};
    window.column_sizes = {space_.remainder};
    now_.tiles.clear();
    load_invariant(window);
    body(window);
    now_.tiles.clear();
  });
}

Ref ChainEmitter::operand(std::size_t i, const Window& window) const {
  Index offset;
  for (std::size_t l = 0; l < space_.loops.size(); ++l)
    offset = offset + window.loops[l] * space_.loops[l].strides[i];
  offset = offset + window.row * space_.rows.strides[i];
  Dims dims, rows = row(1);
  if (space_.group.size > 1)
    dims = rows = {{space_.group.strides[i], static_cast<std::int32_t>(space_.group.size)}};
  for (std::size_t c = 0; c < space_.columns.size(); ++c) {
    offset = offset + window.columns[c] * space_.columns[c].strides[i];
    dims.push_back(
        {space_.columns[c].strides[i], static_cast<std::int32_t>(window.column_sizes[c])});
  }
  if (dims.size() == 2 && dims[1].stride == 1 && dims[0].stride == dims[1].count)
    dims = row(std::int64_t{dims[0].count} * dims[1].count);
  std::size_t inputs = 0;
  for (std::size_t v = 0; v < chain_.values.size(); ++v) {
    if (!chain_.values[v].input) continue;
    if (inputs++ != i) continue;
    const auto& value = chain_.values[v];
    if (row_[v]) dims = rows;
    return Phase::hbm(value.buffer, value.dtype, static_cast<int>(window.rows),
                      space_.rows.strides[i], dims, offset + Index(value.offset));
  }
  const auto& output = chain_.outputs[i - inputs];
  bool one = true;
  for (std::size_t c = 0; c < space_.columns.size(); ++c)
    one = one && (space_.columns[c].strides[i] == 0 || space_.columns[c].size == 1);
  if (one) dims = rows;
  return Phase::hbm(output.buffer, output.dtype, static_cast<int>(window.rows),
                    space_.rows.strides[i], dims, offset + Index(output.offset));
}

Ref ChainEmitter::ref(int value, const Window& window) const {
  const auto& v = chain_.values[static_cast<std::size_t>(value)];
  return phase_.at(now_.tiles.at(value), v.dtype, static_cast<int>(window.rows),
                   row(elements(value, window)), column_offset(value));
}

Ref ChainEmitter::member(int value, const Window& window, std::int64_t g) const {
  const std::int64_t width = is_row(value) ? 1 : window.width();
  return phase_.at(now_.tiles.at(value), chain_.values[static_cast<std::size_t>(value)].dtype,
                   static_cast<int>(window.rows), row(width), column_offset(value) + g * width);
}

Ref ChainEmitter::broadcast(int value, const Window& window) const {
  Ref r = ref(value, window);
  if (!is_row(value)) return r;
  const auto width = static_cast<std::int32_t>(window.width()),
             group = static_cast<std::int32_t>(space_.group.size);
  return group == 1
             ? phase_.at(now_.tiles.at(value), r.pattern.dtype, static_cast<int>(window.rows),
                         repeated(width), column_offset(value))
             : phase_.at(now_.tiles.at(value), r.pattern.dtype, static_cast<int>(window.rows),
                         {{1, group}, {0, width}}, column_offset(value));
}

/// The same for all rows: loaded once per tile of columns.
bool ChainEmitter::invariant(int value) const {
  const int i = operand_of_[static_cast<std::size_t>(value)];
  return i >= 0 && space_.rows.strides[static_cast<std::size_t>(i)] == 0 && space_.rows.size > 1;
}

void ChainEmitter::load(int value, const Window& window, int depth) {
  const auto& v = chain_.values[static_cast<std::size_t>(value)];
  now_.tiles[value] = in_pair(value)
                          ? pair_tile(value)
                          : phase_.sbuf(elements(value, window) * isa::size_bytes(v.dtype), depth);
  phase_.load(
      ref(value, window),
      operand(static_cast<std::size_t>(operand_of_[static_cast<std::size_t>(value)]), window));
}

void ChainEmitter::load_invariant(const Window& window) {
  Window all = window;
  all.row = 0;
  all.rows = std::min(space_.rows.size, kPartitions);
  for (int v = 0; v < static_cast<int>(chain_.values.size()); ++v) {
    if (invariant(v) && chain_.values[static_cast<std::size_t>(v)].input) load(v, all, 1);
  }
  find_unread();
  if (unread_bytes_ > 0) now_.unread = phase_.sbuf(unread_bytes_ * window.width());
  compute_ahead(all);
}

/// Computes the steps that depend on such inputs only: once, too.
void ChainEmitter::compute_ahead(const Window& window) {
  ahead_.clear();
  for (const auto& step : chain_.steps) {
    if (!constant_[static_cast<std::size_t>(step.dst)]) continue;
    now_.tiles[step.dst] =
        phase_.sbuf(elements(step.dst, window) *
                    isa::size_bytes(chain_.values[static_cast<std::size_t>(step.dst)].dtype));
    emit_step(step, window);
    ahead_.insert(step.dst);
  }
}

void ChainEmitter::ensure(int value, const Window& window) {
  if (value >= 0 && !now_.tiles.contains(value))
    load(value, window, is_row(value) ? kRowDepth : slots_.loads);
}

void ChainEmitter::start_window() {
  now_.free.clear();
  now_.pairs.clear();
  std::erase_if(now_.tiles, [&](const auto& entry) {
    return !invariant(entry.first) && !ahead_.contains(entry.first);
  });
}

TileId ChainEmitter::take_tile(int value, std::int64_t width) {
  const std::int64_t bytes =
      width * isa::size_bytes(chain_.values[static_cast<std::size_t>(value)].dtype);
  const bool stored = std::any_of(chain_.outputs.begin(), chain_.outputs.end(),
                                  [&](const auto& o) { return o.value == value; });
  if (is_row(value)) return phase_.sbuf(bytes, kRowDepth);
  if (stored) return phase_.sbuf(bytes, slots_.stores);
  auto& list = now_.free[bytes];
  if (list.empty()) return phase_.sbuf(bytes, slots_.values);
  const TileId tile = list.back();
  list.pop_back();
  return tile;
}

void ChainEmitter::release(int value, std::size_t step) {
  if (value < 0 || last_use_[static_cast<std::size_t>(value)] != step || is_row(value) ||
      ahead_.contains(value) || operand_of_[static_cast<std::size_t>(value)] >= 0)
    return;
  const auto found = now_.tiles.find(value);
  if (found == now_.tiles.end()) return;
  now_.free[now_.released_bytes[value]].push_back(found->second);
}

void ChainEmitter::run_steps(const Window& window, std::size_t from, std::size_t to) {
  for (std::size_t s = from; s < to; s = unit_at(s, to).end) run_unit(window, s, to);
}

/// Two numbers per row, of a group of rows first all of the one, then all of the other.
TileId ChainEmitter::pair_tile(int value) {
  const auto found = second_of_.find(value);
  const auto [place, made] =
      now_.pairs.try_emplace(found == second_of_.end() ? value : found->second, isa::kNone);
  if (made) {
    place->second =
        phase_.sbuf(2 * space_.group.size *
                        isa::size_bytes(chain_.values[static_cast<std::size_t>(value)].dtype),
                    kRowDepth);
    phase_.scatter(place->second);
  }
  return place->second;
}

void ChainEmitter::place(int value, const Window& window) {
  if (in_pair(value)) {
    now_.tiles[value] = pair_tile(value);
    return;
  }
  const std::int64_t width = elements(value, window);
  now_.tiles[value] = take_tile(value, width);
  now_.released_bytes[value] =
      width * isa::size_bytes(chain_.values[static_cast<std::size_t>(value)].dtype);
}

void ChainEmitter::whole_body(const Window& window) {
  start_window();
  run_steps(window, 0, chain_.steps.size());
  store_outputs(window);
}

/// In the order in which they were made: the ring of stores is in order.
void ChainEmitter::store_outputs(const Window& window) {
  std::vector<std::pair<std::size_t, std::size_t>> order;
  for (std::size_t o = 0; o < chain_.outputs.size(); ++o) {
    std::size_t made = 0;
    while (made < chain_.steps.size() && chain_.steps[made].dst != chain_.outputs[o].value) ++made;
    order.emplace_back(made % chain_.steps.size(), o);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [step, o] : order) store_output(o, window);
}

bool ChainEmitter::stores_full(std::size_t o) const {
  std::size_t i = o;
  for (const auto& v : chain_.values) i += v.input ? 1 : 0;
  return std::any_of(space_.columns.begin(), space_.columns.end(),
                     [&](const auto& c) { return c.size > 1 && c.strides[i] != 0; });
}

void ChainEmitter::store_output(std::size_t o, const Window& window) {
  const auto& output = chain_.outputs[o];
  ensure(output.value, window);
  std::size_t inputs = 0;
  for (const auto& v : chain_.values) inputs += v.input ? 1 : 0;
  const Ref dst = operand(inputs + o, window);
  const bool writes_full = dst.pattern.elements_per_partition() > space_.group.size;
  if (!writes_full || !is_row(output.value)) return phase_.store(dst, ref(output.value, window));
  const std::int64_t elements = space_.group.size * window.width();
  const TileId full = phase_.sbuf(elements * isa::size_bytes(output.dtype), 2);
  const Ref wide = phase_.at(full, output.dtype, static_cast<int>(window.rows), row(elements));
  phase_.copy(Engine::kVector, wide, broadcast(output.value, window));
  phase_.store(dst, wide);
}

void ChainEmitter::emit_step(const Chain::Step& step, const Window& window) {
  switch (step.opcode) {
    case Opcode::kTensorTensor: return emit_binary(step, window);
    case Opcode::kTensorReduce: return emit_reduce(step, window);
    case Opcode::kTensorScalar:
      return phase_.tensor_scalar(ref(step.dst, window), ref(step.a, window), step.alu, step.imm0,
                                  step.alu2, step.imm1, engine_of(step));
    case Opcode::kActivation:
      return phase_.activation(step.activation, ref(step.dst, window), ref(step.a, window),
                               step.imm0, step.imm1);
    case Opcode::kTensorCopy:
      return phase_.copy(engine_of(step), ref(step.dst, window), ref(step.a, window));
    case Opcode::kRandom:
      phase_.emit(Engine::kGpSimd, Opcode::kRandom, ref(step.dst, window));
      return;
    case Opcode::kMemset: return phase_.memset(ref(step.dst, window), step.imm0);
    case Opcode::kSelect: {
      const bool full = !is_row(step.dst);
      phase_
          .emit(Engine::kVector, Opcode::kSelect, ref(step.dst, window),
                full ? broadcast(step.a, window) : ref(step.a, window),
                full ? broadcast(step.b, window) : ref(step.b, window))
          .imm0 = step.imm0;
      return;
    }
    default: TRELLIS_CHECK(false, "a chain has a step that no engine executes");
  }
}

void ChainEmitter::emit_reduce(const Chain::Step& step, const Window& window) {
  phase_.reduce(step.alu, ref(step.dst, window), broadcast(step.a, window));
}

// ── rows longer than SBUF ──

std::vector<bool> ChainEmitter::needed_for(const std::vector<int>& targets,
                                           const std::vector<bool>& available) const {
  std::vector<bool> needed(chain_.values.size(), false);
  for (int t : targets) needed[static_cast<std::size_t>(t)] = true;
  for (std::size_t s = chain_.steps.size(); s-- > 0;) {
    const auto& step = chain_.steps[s];
    const auto dst = static_cast<std::size_t>(step.dst);
    if (!needed[dst] || available[dst]) continue;
    for (int v : {step.a, step.b}) {
      if (v >= 0) needed[static_cast<std::size_t>(v)] = true;
    }
  }
  return needed;
}

/// Values of one element per row that become known with this stage.
void ChainEmitter::stage_rows(int stage, const Window& window) {
  for (const auto& step : chain_.steps) {
    if (!is_row(step.dst) || step.opcode == Opcode::kTensorReduce ||
        stage_[static_cast<std::size_t>(step.dst)] != stage)
      continue;
    ensure(step.a, window);
    ensure(step.b, window);
    now_.tiles[step.dst] =
        phase_.sbuf(isa::size_bytes(chain_.values[static_cast<std::size_t>(step.dst)].dtype), 2);
    emit_step(step, window);
  }
}

void ChainEmitter::stage_columns(int stage, bool last, std::int64_t width, Window& window) {
  std::vector<int> targets;
  bool stores = false;
  for (const auto& step : chain_.steps) {
    if (step.opcode != Opcode::kTensorReduce || stage_[static_cast<std::size_t>(step.a)] != stage)
      continue;
    targets.push_back(step.a);
    now_.tiles[step.dst] = phase_.sbuf(4);
    phase_.memset(ref(step.dst, window), reduction_identity(step.alu));
    ensure_row(step.a, window);
  }
  for (const auto& o : chain_.outputs) {
    stores = stores || (last && stores_full(static_cast<std::size_t>(&o - chain_.outputs.data())));
    if (last && !is_row(o.value)) targets.push_back(o.value);
    if (last && is_row(o.value)) ensure_row(o.value, window);
  }
  if (targets.empty() && !stores) return;
  std::vector<bool> available(chain_.values.size());
  for (std::size_t v = 0; v < available.size(); ++v) available[v] = row_[v];
  const std::vector<bool> needed = needed_for(targets, available);
  for (int v = 0; v < static_cast<int>(needed.size()); ++v) {
    if (needed[static_cast<std::size_t>(v)] && is_row(v)) ensure_row(v, window);
  }
  const auto rows_known = now_.tiles;
  for_each_columns(width, window, [&](Window& w) {
    now_.tiles = rows_known;
    now_.free.clear();
    for (std::size_t s = 0; s < chain_.steps.size(); ++s) {
      const auto& step = chain_.steps[s];
      if (step.opcode == Opcode::kTensorReduce) {
        if (stage_[static_cast<std::size_t>(step.a)] != stage) continue;
        ensure(step.a, w);
        phase_.reduce(step.alu, ref(step.dst, w), broadcast(step.a, w), true);
        continue;
      }
      if (is_row(step.dst) || !needed[static_cast<std::size_t>(step.dst)] ||
          stage_[static_cast<std::size_t>(step.dst)] > stage)
        continue;
      ensure(step.a, w);
      ensure(step.b, w);
      now_.tiles[step.dst] = phase_.sbuf(
          w.width() * isa::size_bytes(chain_.values[static_cast<std::size_t>(step.dst)].dtype), 2);
      emit_step(step, w);
    }
    for (std::size_t o = 0; o < chain_.outputs.size(); ++o) {
      if (last && stores_full(o)) store_output(o, w);
    }
  });
  now_.tiles = rows_known;
}

void ChainEmitter::ensure_row(int value, const Window& window) {
  if (is_row(value)) ensure(value, window);
}

void ChainEmitter::in_stages(std::int64_t width) {
  first_of_.clear(), second_of_.clear();  // a stage's numbers are made one by one
  int stages = 0;
  for (int s : stage_) stages = std::max(stages, s);
  Window window;
  for_each_loop(0, 1, window, [&](Window& w) {
    for_each_row(w, [&](Window& x) {
      now_.tiles.clear();
      const auto leave_columns = [&] {  // the loops over them have ended
        x.columns.assign(space_.columns.size(), Index(0));
        x.column_sizes.assign(space_.columns.size(), 1);
      };
      leave_columns();
      for (int stage = 0; stage <= stages; ++stage) {
        stage_rows(stage, x);
        stage_columns(stage, stage == stages, width, x);
        leave_columns();
      }
      for (std::size_t o = 0; o < chain_.outputs.size(); ++o) {
        if (!stores_full(o)) store_output(o, x);
      }
    });
  });
}

}  // namespace trellis::device
