#include <algorithm>
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

/// Dropout that LibTorch draws changes what the kernel computes, and a bias next to the diagonal
/// has no form: those calls are estimated. Dropout by the rule `fused_attention` has a `keep` and
/// another input or result, what was kept.
bool has_flash_form(const Node& node, const Scalars& scalars, const HbmView& q,
                    std::size_t plain_inputs) {
  const std::size_t more = node.inputs.size() - std::min(node.inputs.size(), plain_inputs);
  const bool has_bias = more == 1 && !scalars.has("keep") && !scalars.flag("is_causal", false);
  return node.inputs.size() >= plain_inputs && (more == 0 || has_bias) &&
         scalars.number("dropout_p", 0) == 0 && q.sizes.back() <= kWidestHead &&
         softmax_scale(scalars, q) > 0;
}

/// What is added to the scores, [lq, lk] or [batch, 1 or heads, lq, lk], for every head.
HbmView bias_of_heads(const HbmView& bias, const HbmView& q, const HbmView& k) {
  const std::vector<std::int64_t> sizes{q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]};
  HbmView whole = bias;
  whole.sizes = sizes;
  whole.strides.assign(sizes.size(), 0);
  const std::size_t missing = sizes.size() - bias.sizes.size();
  for (std::size_t d = missing; d < sizes.size(); ++d) {
    if (bias.sizes[d - missing] > 1) whole.strides[d] = bias.strides[d - missing];
  }
  return whole;
}

/// The overrideable operator has the bias after the values, the CPU's after all others.
bool is_overrideable(const Node& node) { return node.op.find("overrideable") != std::string::npos; }

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
                 node.outputs.size() > 2 ? std::optional(lowering.output(node, 2)) : std::nullopt),
      node.inputs.size() > 3
          ? std::optional(bias_of_heads(lowering.input(node, 3), q, lowering.input(node, 1)))
          : std::nullopt};
  const auto kernel = lowering.kernel("flash_attention", index, node_flops(lowering.graph(), node));
  TRELLIS_CHECK(lower_attention(lowering.builder(), kernel, attention),
                "attention was found to have a flash form");
}

void lower_attention_backward(Lowering& lowering, const Node& node, std::uint32_t index) {
  const Scalars scalars(node.scalars);
  const HbmView q = lowering.input(node, 1);
  const bool drops = scalars.has("keep"), biased = !drops && node.inputs.size() > 6;
  const std::size_t bias = is_overrideable(node) ? 4 : 6,
                    rest = biased && is_overrideable(node) ? 5 : 4;  // where out and logsumexp are
  if (!has_flash_form(node, scalars, q, drops ? 7 : 6) || node.outputs.size() < 3)
    return lower_estimate(lowering, node, index, lowering.builder().core().passes.attention);
  const AttentionBackward attention{
      lowering.input(node, 0),
      q,
      lowering.input(node, 2),
      lowering.input(node, 3),
      lowering.input(node, rest),
      lowering.input(node, rest + 1),
      lowering.output(node, 0),
      lowering.output(node, 1),
      lowering.output(node, 2),
      scalars.flag("is_causal", false),
      softmax_scale(scalars, q),
      0,
      dropout_of(scalars, drops ? std::optional(lowering.input(node, 6)) : std::nullopt),
      biased ? std::optional(bias_of_heads(lowering.input(node, bias), q, lowering.input(node, 2)))
             : std::nullopt};
  const auto kernel =
      lowering.kernel("flash_attention_backward", index, node_flops(lowering.graph(), node));
  TRELLIS_CHECK(lower_attention_backward(lowering.builder(), kernel, attention),
                "attention was found to have a flash form");
}

}  // namespace trellis::device
