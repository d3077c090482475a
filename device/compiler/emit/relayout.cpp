#include "device/compiler/emit/relayout.h"

#include <algorithm>
#include <vector>

#include "device/compiler/emit/exchange_axes.h"
#include "device/compiler/emit/fold_axes.h"

namespace trellis::device {
namespace {

constexpr std::int64_t kTileBytes = 32 * 1024;

/// The Tensor engine's sums are fp32: integers do not pass through it.
bool holds_integers(isa::DType dtype) {
  using isa::DType;
  return dtype == DType::kInt32 || dtype == DType::kInt16 || dtype == DType::kInt8 ||
         dtype == DType::kUInt8 || dtype == DType::kBool;
}

/// At most one of the two; none: it is not copied through SBUF.
struct Choice {
  std::optional<Exchange> exchange;
  std::optional<Fold> fold;
  [[nodiscard]] bool any() const { return exchange || fold; }
};

Choice choose(const HbmView& source, const HbmView& target, std::int64_t tile_bytes) {
  Choice choice;
  const Axes axes = axes_of(source, target);
  if (axes.empty()) return choice;
  if (std::any_of(axes.begin(), axes.end(), [](const Axis& a) { return a.in <= 0 || a.out <= 0; }))
    return choice;
  const int narrow = std::min(isa::size_bytes(source.dtype), isa::size_bytes(target.dtype)),
            wide = std::max(isa::size_bytes(source.dtype), isa::size_bytes(target.dtype));
  const Axis& last = axes.back();
  if (last.out != 1 || (last.in == 1 && last.size * narrow >= kShortRun)) return choice;
  if (!holds_integers(source.dtype)) choice.exchange = plan_exchange(axes);
  if (!choice.exchange) choice.fold = plan_fold(axes, wide, tile_bytes);
  const std::int64_t direct = (last.in == 1 ? last.size : 1) * narrow;
  if (choice.fold && choice.fold->run_bytes < 2 * direct) choice.fold.reset();
  return choice;
}

/// The source has steps, and its innermost dimension is not the target's: what is skipped would be
/// loaded in short runs.
bool steps_across(const HbmView& source, const HbmView& target) {
  const Axes axes = axes_of(source, target);
  if (axes.size() < 2) return false;
  const std::size_t from = run_of(axes, &Axis::in)[0];
  return from + 1 != axes.size() && axes[from].in > 1 && axes[from].in <= kWidestLayoutStep;
}

/// A view's elements in the order in which they lie in memory, without gaps; in no buffer yet.
HbmView in_own_order(const HbmView& source) {
  std::vector<std::size_t> order(source.rank());
  for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return source.strides[a] < source.strides[b];
  });
  HbmView dense = source;
  dense.offset = 0;
  std::int64_t stride = 1;
  for (const std::size_t d : order) {
    dense.strides[d] = stride;
    stride *= source.sizes[d];
  }
  return dense;
}

std::int64_t tile_bytes(const ProgramBuilder& builder) {
  return std::min(kTileBytes, builder.sbuf_bytes() / 6);
}

}  // namespace

bool moves_in_short_runs(const HbmView& view) {
  std::int64_t run = 1, elements = 1;
  bool inside = true;  // of the dimensions that lie next to each other
  for (std::size_t d = view.rank(); d-- > 0;) {
    if (view.sizes[d] == 1) continue;
    if (view.strides[d] == 0 && elements == 1) return false;
    inside = inside && view.strides[d] == run;
    if (inside) run *= view.sizes[d];
    elements *= view.sizes[d];
  }
  return elements >= kWorthLayout && run * isa::size_bytes(view.dtype) < kShortRun;
}

bool can_relayout(const ProgramBuilder& builder, const HbmView& source, const HbmView& target) {
  return choose(source, target, tile_bytes(builder)).any();
}

bool relayout(ProgramBuilder& builder, std::uint32_t kernel, const HbmView& source,
              const HbmView& target) {
  const Choice choice = choose(source, target, tile_bytes(builder));
  HbmView compact = in_own_order(source);
  if (choice.any() && steps_across(source, target) && can_relayout(builder, source, compact) &&
      can_relayout(builder, compact, target)) {
    compact.buffer = builder.scratch(compact.elements() * isa::size_bytes(compact.dtype));
    return relayout(builder, kernel, source, compact) && relayout(builder, kernel, compact, target);
  }
  if (choice.exchange) builder.append(exchange_axes(kernel, source, target, *choice.exchange));
  if (choice.fold) builder.append(fold_axes(kernel, source, target, *choice.fold));
  return choice.any();
}

std::optional<HbmView> dense_copy(ProgramBuilder& builder, std::uint32_t kernel,
                                  const HbmView& source) {
  HbmView distinct = source;
  for (std::size_t d = 0; d < source.rank(); ++d) {
    if (source.strides[d] == 0) distinct.sizes[d] = 1;
  }
  HbmView target = contiguous(0, source.dtype, distinct.sizes);
  if (!can_relayout(builder, distinct, target)) return std::nullopt;
  target.buffer = builder.scratch(distinct.elements() * isa::size_bytes(source.dtype));
  relayout(builder, kernel, distinct, target);
  target.sizes = source.sizes;
  for (std::size_t d = 0; d < source.rank(); ++d) {
    if (source.strides[d] == 0) target.strides[d] = 0;
  }
  return target;
}

}  // namespace trellis::device
