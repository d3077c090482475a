#include "device/compiler/fusion/lower_chain.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "device/compiler/emit/relayout.h"
#include "device/compiler/fusion/chain_emitter.h"

namespace trellis::device {
namespace {

using isa::Opcode;

// Elements of a window on a partition: an instruction's fixed cycles (160 of Vector, 220 of Scalar,
// sim/configs) are a tenth of them, and in bf16 they are the 4 KiB over which HBM is interleaved.
constexpr std::int64_t kWidest = 2048;

/// A chain that only moves data needs no engine: DMA copies and casts from HBM to HBM.
bool is_plain_copy(const Chain& chain) {
  if (chain.terminal || chain.steps.size() != 1 || chain.outputs.size() != 1) return false;
  const auto& step = chain.steps[0];
  if (step.opcode != Opcode::kTensorCopy || chain.outputs[0].value != step.dst) return false;
  const auto& source = chain.values[static_cast<std::size_t>(step.a)];
  for (std::size_t d = 0; d < chain.sizes.size(); ++d) {
    if (chain.sizes[d] > 1 && (!source.input || source.strides[d] == 0)) return false;
  }
  return true;
}

void lower_copy(ProgramBuilder& builder, std::uint32_t kernel, const Chain& chain) {
  const auto& source = chain.values[static_cast<std::size_t>(chain.steps[0].a)];
  const auto& target = chain.outputs[0];
  const std::int64_t elements =
      std::accumulate(chain.sizes.begin(), chain.sizes.end(), std::int64_t{1}, std::multiplies<>());
  if (elements >= kWorthLayout &&
      relayout(builder, kernel,
               {source.buffer, source.dtype, chain.sizes, source.strides, source.offset},
               {target.buffer, target.dtype, chain.sizes, target.strides, target.offset}))
    return;
  const ChainSpace space = plan_space(chain, 8192);
  Phase phase(kernel);
  ChainEmitter emitter(phase, chain, space, builder.core());
  emitter.for_each_window(8192, [&](const Window& w) {
    const Ref src = emitter.operand(0, w), dst = emitter.operand(1, w);
    phase.store(dst, src);
  });
  builder.append(std::move(phase));
}

/// True when a reduction would read one element for each of many columns, and several such
/// elements per row.
bool repeats_within_rows(const Chain& chain, const Chain::Value& value) {
  if (chain.reduced.empty()) return false;
  bool last = true, repeats = false, varies = false;
  for (std::size_t d = chain.sizes.size(); d-- > 0;) {
    if (chain.sizes[d] == 1 || chain.reduced[d] == chain.terminal) continue;
    if (std::exchange(last, false)) repeats = value.strides[d] == 0;
    varies = varies || value.strides[d] != 0;
  }
  return repeats && varies;
}

/// The broadcast input as a tensor of its own.
HbmView spread(ProgramBuilder& builder, std::uint32_t kernel, const Chain& chain,
               const Chain::Value& value) {
  HbmView whole = contiguous(0, value.dtype, chain.sizes);
  whole.buffer = builder.scratch(whole.elements() * isa::size_bytes(value.dtype));
  Chain copy;
  copy.sizes = chain.sizes;
  copy.values = {value, {value.dtype, false, 0, 0, {}}};
  Chain::Step step;
  step.a = 0, step.dst = 1;
  copy.steps = {step};
  copy.outputs = {{1, whole.buffer, whole.dtype, 0, whole.strides}};
  lower_chain(builder, kernel, std::move(copy));
  return whole;
}

/// Inputs that would be fetched element by element, in the order of the chain's dimensions, are
/// brought to it first.
void straighten_inputs(ProgramBuilder& builder, std::uint32_t kernel, Chain& chain) {
  for (auto& value : chain.values) {
    if (!value.input) continue;
    const HbmView source{value.buffer, value.dtype, chain.sizes, value.strides, value.offset};
    const bool repeats = repeats_within_rows(chain, value);
    if (!repeats && !moves_in_short_runs(source)) continue;
    const std::optional<HbmView> straight =
        repeats ? spread(builder, kernel, chain, value) : dense_copy(builder, kernel, source);
    if (!straight) continue;
    value.buffer = straight->buffer;
    value.offset = 0;
    value.strides = straight->strides;
  }
}

/// The same for outputs: the chain writes to scratch, and what is returned is where that belongs.
std::vector<std::pair<HbmView, HbmView>> straighten_outputs(ProgramBuilder& builder, Chain& chain) {
  std::vector<std::pair<HbmView, HbmView>> copies;
  for (auto& output : chain.outputs) {
    const HbmView target{output.buffer, output.dtype, chain.sizes, output.strides, output.offset};
    const bool whole = std::count(target.strides.begin(), target.strides.end(), 0) == 0;
    if (!whole || !moves_in_short_runs(target)) continue;
    HbmView straight = contiguous(0, output.dtype, chain.sizes);
    if (!can_relayout(builder, straight, target)) continue;
    straight.buffer = builder.scratch(straight.elements() * isa::size_bytes(output.dtype));
    output.buffer = straight.buffer;
    output.offset = 0;
    output.strides = straight.strides;
    copies.emplace_back(straight, target);
  }
  return copies;
}

/// The strides of the first output, else input, of a chain that has no 0 in the dimensions that
/// `counts` names; empty when there is none.
template <typename Counts>
std::vector<std::int64_t> first_dense(const Chain& chain, Counts counts) {
  const auto dense = [&](const std::vector<std::int64_t>& strides) {
    for (std::size_t d = 0; d < strides.size(); ++d) {
      if (counts(d) && strides[d] == 0) return false;
    }
    return true;
  };
  for (const auto& o : chain.outputs) {
    if (dense(o.strides)) return o.strides;
  }
  for (const auto& v : chain.values) {
    if (v.input && dense(v.strides)) return v.strides;
  }
  return {};
}

/// Dimensions in the order of the first output's memory, so that rows are contiguous. Reduced ones
/// come last where a row is reduced, and first where rows are added up.
void order_dimensions(Chain& chain) {
  const auto reduced = [&](std::size_t d) { return !chain.reduced.empty() && chain.reduced[d]; };
  const auto kept_key = first_dense(chain, [&](std::size_t d) { return !reduced(d); }),
             reduced_key = first_dense(chain, [](std::size_t) { return true; });
  std::vector<std::size_t> order(chain.sizes.size());
  for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (reduced(a) != reduced(b)) return reduced(a) == chain.terminal;
    const auto& key = reduced(a) ? reduced_key : kept_key;
    return !key.empty() && key[a] > key[b];
  });
  const auto permute = [&](auto& list) {
    auto old = list;
    for (std::size_t d = 0; d < order.size(); ++d) list[d] = old[order[d]];
  };
  permute(chain.sizes);
  if (!chain.reduced.empty()) permute(chain.reduced);
  for (auto& v : chain.values) {
    if (v.input) permute(v.strides);
  }
  for (auto& o : chain.outputs) permute(o.strides);
}

constexpr std::int64_t kMostSlices = 16;

/// The entries of `list` (one per dimension) that belong to kept dimensions.
template <typename T>
std::vector<T> kept(const std::vector<T>& list, const std::vector<bool>& reduced) {
  std::vector<T> out;
  for (std::size_t d = 0; d < list.size(); ++d) {
    if (!reduced[d]) out.push_back(list[d]);
  }
  return out;
}

/// Offsets of the elements of `source` that one result sums; empty when they are more than
/// kMostSlices.
std::vector<std::int64_t> slice_offsets(const Chain& chain, const Chain::Value& source) {
  std::vector<std::int64_t> offsets{source.offset};
  for (std::size_t d = 0; d < chain.sizes.size(); ++d) {
    if (!chain.reduced[d]) continue;
    const std::vector<std::int64_t> first = offsets;
    if (static_cast<std::int64_t>(first.size()) * chain.sizes[d] > kMostSlices) return {};
    for (std::int64_t i = 1; i < chain.sizes[d]; ++i) {
      for (std::int64_t offset : first) offsets.push_back(offset + i * source.strides[d]);
    }
  }
  return offsets;
}

/// A sum over few elements per result (the query heads that share a key head) is that many strided
/// reads added up; nullopt for others. Summing it on the Tensor engine would use as many of its
/// rows as there are elements to add.
std::optional<Chain> sum_of_slices(const Chain& chain) {
  const auto reduces = [](const Chain::Step& s) { return s.opcode == Opcode::kTensorReduce; };
  if (!chain.terminal || !reduces(chain.steps[0]) ||
      std::count_if(chain.steps.begin(), chain.steps.end(), reduces) != 1)
    return std::nullopt;
  const Chain::Step reduction = chain.steps[0];
  const auto source = static_cast<std::size_t>(reduction.a);
  const bool reused = std::any_of(chain.steps.begin() + 1, chain.steps.end(), [&](const auto& s) {
    return s.a == reduction.a || s.b == reduction.a;
  });
  if (reduction.alu != isa::AluOp::kAdd || !chain.values[source].input || reused)
    return std::nullopt;
  const std::vector<std::int64_t> offsets = slice_offsets(chain, chain.values[source]);
  Chain sum = chain;
  sum.terminal = false;
  sum.split = 0;
  sum.sizes = kept(chain.sizes, chain.reduced);
  sum.reduced.clear();
  if (offsets.size() < 2 || sum.sizes.empty()) return std::nullopt;
  for (auto& value : sum.values) {
    if (value.input) value.strides = kept(value.strides, chain.reduced);
  }
  for (auto& output : sum.outputs) output.strides = kept(output.strides, chain.reduced);
  sum.steps.erase(sum.steps.begin());
  int total = reduction.a;
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    Chain::Step add;
    add.opcode = Opcode::kTensorTensor;
    add.alu = isa::AluOp::kAdd;
    add.a = total;
    add.b = static_cast<int>(sum.values.size());
    sum.values.push_back(sum.values[source]);
    sum.values.back().offset = offsets[i];
    const bool last = i + 1 == offsets.size();
    add.dst = total = last ? reduction.dst : static_cast<int>(sum.values.size());
    if (!last) sum.values.push_back({});
    sum.steps.insert(sum.steps.begin() + static_cast<std::ptrdiff_t>(i) - 1, add);
  }
  return sum;
}

/// Random numbers are drawn first and kept: rows that are walked more than once must meet the same
/// ones each time. False: there are none, or nothing else.
bool draw_ahead(ProgramBuilder& builder, std::uint32_t kernel, Chain& chain) {
  const auto draws = [](const Chain::Step& s) { return s.opcode == Opcode::kRandom; };
  const auto found = std::find_if(chain.steps.begin(), chain.steps.end(), draws);
  if (found == chain.steps.end() || chain.steps.size() == 1) return false;
  const auto drawn = static_cast<std::size_t>(found->dst);
  std::int64_t elements = 1;
  for (const std::int64_t size : chain.sizes) elements *= size;
  const HbmView kept =
      contiguous(builder.scratch(elements * 4), chain.values[drawn].dtype, chain.sizes);
  Chain ahead;
  ahead.sizes = chain.sizes;
  ahead.values = {{kept.dtype, false, 0, 0, {}}};
  ahead.steps = {*found};
  ahead.steps[0].dst = 0;
  ahead.outputs = {{0, kept.buffer, kept.dtype, 0, kept.strides}};
  lower_chain(builder, kernel, std::move(ahead));
  if (static_cast<std::size_t>(found - chain.steps.begin()) < chain.split) --chain.split;
  chain.steps.erase(found);
  chain.values[drawn] = {kept.dtype, true, kept.buffer, 0, kept.strides};
  return true;
}

/// Rows that fit in SBUF with everything that is made of them: two windows alternately where there
/// is room, else one with room to work ahead, else one. False: they do not.
bool whole_rows(ProgramBuilder& builder, std::uint32_t kernel, const Chain& chain,
                const ChainSpace& space) {
  struct Form {
    int windows;
    Slots slots;
  };
  for (const Form& form :
       {Form{2, {2, 2, 2}}, Form{2, {1, 2, 2}}, Form{2, {1, 2, 1}}, Form{1, {2, 2, 2}},
        Form{1, {1, 2, 2}}, Form{1, {1, 2, 1}}, Form{1, {1, 1, 1}}}) {
    if (form.windows == 2 && !builder.core().compiler.paired_windows) continue;
    if (bytes_per_column(chain, form.slots) * form.windows * space.width() * space.group.size >
        builder.sbuf_bytes() * 8 / 5)
      continue;  // far from fitting
    Phase whole(kernel);
    ChainEmitter emitter(whole, chain, space, builder.core(), form.slots);
    form.windows == 2
        ? emitter.in_pairs(space.width())
        : emitter.for_each_window(space.width(), [&](const Window& w) { emitter.whole_body(w); });
    if (whole.sbuf_bytes() > builder.sbuf_bytes()) continue;
    builder.append(std::move(whole));
    return true;
  }
  return false;
}

/// A chain whose operands move in long runs.
void lower_straight(ProgramBuilder& builder, std::uint32_t kernel, Chain& chain) {
  if (!builder.core().compiler.fused_random && draw_ahead(builder, kernel, chain))
    return lower_chain(builder, kernel, std::move(chain));
  if (chain.terminal) return lower_terminal(builder, kernel, chain);
  const bool reduces = std::any_of(chain.steps.begin(), chain.steps.end(),
                                   [](const auto& s) { return s.opcode == Opcode::kTensorReduce; });
  const std::int64_t memory = builder.sbuf_bytes() * 4 / 5;
  if (!reduces) {
    const bool pairs = builder.core().compiler.paired_windows;
    const std::int64_t per_column =
        pairs ? 2 * bytes_per_column(chain, {1}) : bytes_per_column(chain, {2});
    const std::int64_t widest =
        std::clamp<std::int64_t>(memory / 2 / per_column / 64 * 64, 64, kWidest);
    const ChainSpace space = plan_space(chain, widest);
    Phase phase(kernel);
    ChainEmitter emitter(phase, chain, space, builder.core(), {pairs ? 1 : 2});
    pairs ? emitter.in_pairs(widest)
          : emitter.for_each_window(widest, [&](const Window& w) { emitter.whole_body(w); });
    return builder.append(std::move(phase));
  }
  ChainSpace space = plan_space(chain, kWidest);
  if (builder.core().compiler.batched_products) {
    const std::int64_t per_column = builder.core().compiler.paired_windows
                                        ? 2 * bytes_per_column(chain, {1})
                                        : bytes_per_column(chain, {2});
    group_rows(space, std::min(kWidest, memory / per_column));
  }
  if (whole_rows(builder, kernel, chain, space)) return;
  if (draw_ahead(builder, kernel, chain)) return lower_chain(builder, kernel, std::move(chain));
  // Values that live through several stages are not in the count of bytes.
  for (std::int64_t widest =
           std::clamp<std::int64_t>(memory / bytes_per_column(chain, {2}) / 64 * 64, 64, kWidest);
       ; widest = std::max<std::int64_t>(widest / 128 * 64, 64)) {
    Phase phase(kernel);
    ChainEmitter emitter(phase, chain, space, builder.core());
    emitter.in_stages(widest);
    if (phase.sbuf_bytes() <= builder.sbuf_bytes() || widest == 64)
      return builder.append(std::move(phase));
  }
}

}  // namespace

void lower_chain(ProgramBuilder& builder, std::uint32_t kernel, Chain chain) {
  order_dimensions(chain);
  if (is_plain_copy(chain)) return lower_copy(builder, kernel, chain);
  straighten_inputs(builder, kernel, chain);
  if (auto sum = sum_of_slices(chain)) return lower_chain(builder, kernel, std::move(*sum));
  const auto copies = straighten_outputs(builder, chain);
  lower_straight(builder, kernel, chain);
  for (const auto& [source, target] : copies) {
    const bool copied = relayout(builder, kernel, source, target);
    TRELLIS_CHECK(copied, "an output in scratch has no way to its place");
  }
}

}  // namespace trellis::device
