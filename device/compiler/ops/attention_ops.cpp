#include <cmath>
#include <string>
#include <vector>

#include "base/check.h"
#include "device/compiler/attention/lower_attention.h"
#include "device/compiler/graph/recipe.h"
#include "device/compiler/ops/lowering.h"

/// From the operators that LibTorch calls fused attention to the two flash kernels.
namespace trellis::device {
namespace {

constexpr std::int64_t kWidestHead =
    128;  ///< the contraction of one score tile fits the partitions

double softmax_scale(const Scalars& scalars, const HbmView& q) {
  return scalars.number("scale", 1 / std::sqrt(static_cast<double>(q.sizes.back())));
}

/// Dropout that LibTorch draws changes what the kernel computes: those calls are estimated. Dropout
/// by the rule `fused_attention` has a `keep` and another input or result, what was kept.
bool has_flash_form(const Node& node, const Scalars& scalars, const HbmView& q,
                    std::size_t plain_inputs) {
  return node.inputs.size() == plain_inputs && scalars.number("dropout_p", 0) == 0 &&
         q.sizes.back() <= kWidestHead && softmax_scale(scalars, q) > 0;
}

/// A mask as large as the scores; nullopt when it is no summand of them.
std::optional<HbmView> mask_of_scores(HbmView mask, const HbmView& q, const HbmView& k) {
  const std::vector<std::int64_t> scores{q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2]};
  const bool number = mask.dtype == isa::DType::kFp32 || mask.dtype == isa::DType::kBf16 ||
                      mask.dtype == isa::DType::kFp16;
  if (!number || mask.rank() > scores.size()) return std::nullopt;
  while (mask.rank() < scores.size()) {
    mask.sizes.insert(mask.sizes.begin(), 1);
    mask.strides.insert(mask.strides.begin(), 0);
  }
  for (std::size_t d = 0; d < scores.size(); ++d) {
    if (mask.sizes[d] == scores[d]) continue;
    if (mask.sizes[d] != 1) return std::nullopt;
    mask.sizes[d] = scores[d];
    mask.strides[d] = 0;
  }
  return mask;
}

std::optional<AttentionDropout> dropout_of(const Scalars& scalars, std::optional<HbmView> kept) {
  if (!scalars.has("keep")) return std::nullopt;
  return AttentionDropout{scalars.number("keep", 1), scalars.number("factor", 1), std::move(kept)};
}

}  // namespace

void lower_attention(Lowering& lowering, const Node& node, std::uint32_t index) {
  const Scalars scalars(node.scalars);
  const HbmView q = lowering.input(node, 0);
  const bool masked = node.inputs.size() == 4 && !scalars.has("keep");
  const auto mask =
      masked ? mask_of_scores(lowering.input(node, 3), q, lowering.input(node, 1)) : std::nullopt;
  if (!has_flash_form(node, scalars, q, masked ? 4 : 3) || masked != mask.has_value())
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
      mask};
  const auto kernel = lowering.kernel("flash_attention", index, node_flops(lowering.graph(), node));
  TRELLIS_CHECK(lower_attention(lowering.builder(), kernel, attention),
                "attention was found to have a flash form");
}

void lower_attention_backward(Lowering& lowering, const Node& node, std::uint32_t index) {
  const Scalars scalars(node.scalars);
  const HbmView q = lowering.input(node, 1);
  const bool drops = scalars.has("keep"), masked = node.inputs.size() == 7 && !drops;
  // The overrideable operator has the mask after the values, the CPU's after all others.
  const bool in_between = masked && plain_name(node.op).find("overrideable") != std::string::npos;
  const std::size_t out = in_between ? 5 : 4;
  const auto mask =
      masked ? mask_of_scores(lowering.input(node, in_between ? 4 : 6), q, lowering.input(node, 2))
             : std::nullopt;
  if (!has_flash_form(node, scalars, q, drops || masked ? 7 : 6) || node.outputs.size() < 3 ||
      masked != mask.has_value())
    return lower_estimate(lowering, node, index, lowering.builder().core().passes.attention);
  const AttentionBackward attention{
      lowering.input(node, 0),
      q,
      lowering.input(node, 2),
      lowering.input(node, 3),
      lowering.input(node, out),
      lowering.input(node, out + 1),
      lowering.output(node, 0),
      lowering.output(node, 1),
      lowering.output(node, 2),
      scalars.flag("is_causal", false),
      softmax_scale(scalars, q),
      0,
      dropout_of(scalars, drops ? std::optional(lowering.input(node, 6)) : std::nullopt),
      mask};
  const auto kernel =
      lowering.kernel("flash_attention_backward", index, node_flops(lowering.graph(), node));
  TRELLIS_CHECK(lower_attention_backward(lowering.builder(), kernel, attention),
                "attention was found to have a flash form");
}

}  // namespace trellis::device
