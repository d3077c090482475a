#include <cmath>

#include "base/check.h"
#include "device/compiler/attention/lower_attention.h"
#include "device/compiler/ops/lowering.h"

/// From the operators that LibTorch calls fused attention to the two flash kernels.
namespace trellis::device {
namespace {

constexpr std::int64_t kWidestHead =
    128;  ///< the contraction of one score tile fits the partitions

double softmax_scale(const Scalars& scalars, const HbmView& q) {
  return scalars.number("scale", 1 / std::sqrt(static_cast<double>(q.sizes.back())));
}

/// A mask, or dropout that LibTorch draws, changes what the kernel computes: those calls are
/// estimated. Dropout by the rule `fused_attention` has a `keep` and another input or result, what
/// was kept.
bool has_flash_form(const Node& node, const Scalars& scalars, const HbmView& q,
                    std::size_t plain_inputs) {
  return node.inputs.size() == plain_inputs && scalars.number("dropout_p", 0) == 0 &&
         q.sizes.back() <= kWidestHead && softmax_scale(scalars, q) > 0;
}

std::optional<AttentionDropout> dropout_of(const Scalars& scalars, std::optional<HbmView> kept) {
  if (!scalars.has("keep")) return std::nullopt;
  return AttentionDropout{scalars.number("keep", 1), scalars.number("factor", 1), std::move(kept)};
}

}  // namespace

void lower_attention(Lowering& lowering, const Node& node, std::uint32_t index) {
  const Scalars scalars(node.scalars);
  const HbmView q = lowering.input(node, 0);
  if (!has_flash_form(node, scalars, q, 3))
    return lower_estimate(lowering, node, index, lowering.builder().core().passes.attention);
  const Attention attention{
      q,
      lowering.input(node, 1),
      lowering.input(node, 2),
      lowering.output(node, 0),
      node.outputs.size() > 1 ? std::optional(lowering.output(node, 1)) : std::nullopt,
      scalars.flag("is_causal", false),
      softmax_scale(scalars, q),
      0,
      dropout_of(scalars,
                 node.outputs.size() > 2 ? std::optional(lowering.output(node, 2)) : std::nullopt)};
  const auto kernel = lowering.kernel("flash_attention", index, node_flops(lowering.graph(), node));
  TRELLIS_CHECK(lower_attention(lowering.builder(), kernel, attention),
                "attention was found to have a flash form");
}

void lower_attention_backward(Lowering& lowering, const Node& node, std::uint32_t index) {
  const Scalars scalars(node.scalars);
  const HbmView q = lowering.input(node, 1);
  const bool drops = scalars.has("keep");
  if (!has_flash_form(node, scalars, q, drops ? 7 : 6) || node.outputs.size() < 3)
    return lower_estimate(lowering, node, index, lowering.builder().core().passes.attention);
  const AttentionBackward attention{
      lowering.input(node, 0),
      q,
      lowering.input(node, 2),
      lowering.input(node, 3),
      lowering.input(node, 4),
      lowering.input(node, 5),
      lowering.output(node, 0),
      lowering.output(node, 1),
      lowering.output(node, 2),
      scalars.flag("is_causal", false),
      softmax_scale(scalars, q),
      0,
      dropout_of(scalars, drops ? std::optional(lowering.input(node, 6)) : std::nullopt)};
  const auto kernel =
      lowering.kernel("flash_attention_backward", index, node_flops(lowering.graph(), node));
  TRELLIS_CHECK(lower_attention_backward(lowering.builder(), kernel, attention),
                "attention was found to have a flash form");
}

}  // namespace trellis::device
