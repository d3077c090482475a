#include "device/compiler/fusion/lower_chain.h"

#include <algorithm>
#include <map>
#include <optional>

#include "device/compiler/emit/transpose.h"
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
  const ChainSpace space = plan_space(chain, 8192);
  Phase phase(kernel);
  ChainEmitter emitter(phase, chain, space, builder.core());
  emitter.for_each_window(8192, [&](const Window& w) {
    const Ref src = emitter.operand(0, w), dst = emitter.operand(1, w);
    phase.store(dst, src);
  });
  builder.append(std::move(phase));
}

/// Inputs whose contiguous dimension is not the chain's innermost one would be fetched element by
/// element: they are brought to the chain's order first.
void straighten_inputs(ProgramBuilder& builder, std::uint32_t kernel, Chain& chain) {
  std::size_t last = chain.sizes.size();
  while (last > 0 && chain.sizes[last - 1] == 1) --last;
  if (last == 0) return;
  const std::size_t inner = last - 1;
  for (auto& value : chain.values) {
    if (!value.input || value.strides[inner] == 0 || value.strides[inner] == 1) continue;
    const HbmView source{value.buffer, value.dtype, chain.sizes, value.strides, value.offset};
    if (!worth_transposing(source, inner)) continue;
    const HbmView straight = transpose_to_scratch(builder, kernel, source);
    value.buffer = straight.buffer;
    value.offset = 0;
    value.strides = straight.strides;
  }
}

/// Dimensions in the order of the first output's memory, so that rows are contiguous.
void order_dimensions(Chain& chain) {
  const auto dense = [](const std::vector<std::int64_t>& strides) {
    return std::count(strides.begin(), strides.end(), 0) == 0;
  };
  const std::vector<std::int64_t>* found = nullptr;
  for (const auto& o : chain.outputs) {
    if (found == nullptr && dense(o.strides)) found = &o.strides;
  }
  for (const auto& v : chain.values) {
    if (found == nullptr && v.input && dense(v.strides)) found = &v.strides;
  }
  if (found == nullptr) return;
  const std::vector<std::int64_t> key = *found;
  std::vector<std::size_t> order(chain.sizes.size());
  for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return key[a] > key[b]; });
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

}  // namespace

void lower_chain(ProgramBuilder& builder, std::uint32_t kernel, Chain chain) {
  if (auto sum = sum_of_slices(chain)) return lower_chain(builder, kernel, std::move(*sum));
  order_dimensions(chain);
  straighten_inputs(builder, kernel, chain);
  if (is_plain_copy(chain)) return lower_copy(builder, kernel, chain);
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

}  // namespace trellis::device
