#include <algorithm>
#include <array>
#include <set>

#include "device/compiler/graph/flops.h"
#include "device/compiler/graph/recipe.h"

/// FLOPs by shapes. Leading inputs are at fixed places in a schema, so that an `out` tensor
/// listed after them does not disturb.
namespace trellis::device {
namespace {

enum class Cost : std::uint8_t {
  kElementwise,
  kNone,
  kReduction,
  kMatmul,
  kAddMatmul,
  kAddBatchSum,
  kGroupedMatmul,
  kAttention,
  kAttentionBackward,
  kConvolution,
  kConvolutionBackward,
  kScatterAdd
};

struct Row {
  std::string_view op;
  Cost cost;
};

/// Sorted by name. What is not here costs one FLOP per output element.
constexpr auto kCosts = [] {
  std::array rows = std::to_array<Row>({
      {"mm", Cost::kMatmul},
      {"bmm", Cost::kMatmul},
      {"linear", Cost::kMatmul},
      {"matmul", Cost::kMatmul},
      {"mv", Cost::kMatmul},
      {"dot", Cost::kMatmul},
      {"vdot", Cost::kMatmul},
      {"inner", Cost::kMatmul},
      {"_int_mm", Cost::kMatmul},
      {"_scaled_mm", Cost::kMatmul},
      {"_grouped_mm", Cost::kGroupedMatmul},
      {"_scaled_grouped_mm", Cost::kGroupedMatmul},
      {"addmm", Cost::kAddMatmul},
      {"baddbmm", Cost::kAddMatmul},
      {"addmv", Cost::kAddMatmul},
      {"_addmm_activation", Cost::kAddMatmul},
      {"mm_gelu", Cost::kMatmul},
      {"mm_gelu_backward", Cost::kMatmul},
      {"addmm_gelu", Cost::kAddMatmul},
      {"addbmm", Cost::kAddBatchSum},
      {"scaled_dot_product_attention", Cost::kAttention},
      {"_scaled_dot_product_attention_math", Cost::kAttention},
      {"_scaled_dot_product_flash_attention", Cost::kAttention},
      {"_scaled_dot_product_flash_attention_for_cpu", Cost::kAttention},
      {"_scaled_dot_product_efficient_attention", Cost::kAttention},
      {"_scaled_dot_product_fused_attention_overrideable", Cost::kAttention},
      {"_scaled_dot_product_flash_attention_backward", Cost::kAttentionBackward},
      {"_scaled_dot_product_flash_attention_for_cpu_backward", Cost::kAttentionBackward},
      {"_scaled_dot_product_efficient_attention_backward", Cost::kAttentionBackward},
      {"_scaled_dot_product_fused_attention_overrideable_backward", Cost::kAttentionBackward},
      {"convolution", Cost::kConvolution},
      {"_convolution", Cost::kConvolution},
      {"convolution_overrideable", Cost::kConvolution},
      {"convolution_backward", Cost::kConvolutionBackward},
      {"convolution_backward_overrideable", Cost::kConvolutionBackward},
      {"scatter_add", Cost::kScatterAdd},
      {"index_add", Cost::kScatterAdd},
      {"embedding_dense_backward", Cost::kScatterAdd},
      // reductions and scans
      {"all", Cost::kReduction},
      {"amax", Cost::kReduction},
      {"amin", Cost::kReduction},
      {"aminmax", Cost::kReduction},
      {"any", Cost::kReduction},
      {"argmax", Cost::kReduction},
      {"argmin", Cost::kReduction},
      {"argsort", Cost::kReduction},
      {"bincount", Cost::kReduction},
      {"count_nonzero", Cost::kReduction},
      {"cumprod", Cost::kReduction},
      {"cumsum", Cost::kReduction},
      {"linalg_vector_norm", Cost::kReduction},
      {"logsumexp", Cost::kReduction},
      {"max", Cost::kReduction},
      {"mean", Cost::kReduction},
      {"median", Cost::kReduction},
      {"min", Cost::kReduction},
      {"nll_loss_forward", Cost::kReduction},
      {"nll_loss2d_forward", Cost::kReduction},
      {"nonzero", Cost::kReduction},
      {"norm", Cost::kReduction},
      {"prod", Cost::kReduction},
      {"sort", Cost::kReduction},
      {"std", Cost::kReduction},
      {"std_mean", Cost::kReduction},
      {"sum", Cost::kReduction},
      {"topk", Cost::kReduction},
      {"var", Cost::kReduction},
      {"var_mean", Cost::kReduction},
      {"_foreach_norm", Cost::kReduction},
      {"_foreach_max", Cost::kReduction},
      {"mse_loss", Cost::kReduction},
      // data movement
      {"alias", Cost::kNone},
      {"arange", Cost::kNone},
      {"as_strided", Cost::kNone},
      {"cat", Cost::kNone},
      {"chunk", Cost::kNone},
      {"clone", Cost::kNone},
      {"constant_pad_nd", Cost::kNone},
      {"contiguous", Cost::kNone},
      {"copy", Cost::kNone},
      {"detach", Cost::kNone},
      {"diagonal", Cost::kNone},
      {"embedding", Cost::kNone},
      {"empty", Cost::kNone},
      {"empty_like", Cost::kNone},
      {"empty_strided", Cost::kNone},
      {"expand", Cost::kNone},
      {"eye", Cost::kNone},
      {"fill", Cost::kNone},
      {"flatten", Cost::kNone},
      {"flip", Cost::kNone},
      {"full", Cost::kNone},
      {"full_like", Cost::kNone},
      {"gather", Cost::kNone},
      {"index", Cost::kNone},
      {"index_copy", Cost::kNone},
      {"index_fill", Cost::kNone},
      {"index_put", Cost::kNone},
      {"_index_put_impl", Cost::kNone},
      {"_unsafe_index", Cost::kNone},
      {"_unsafe_index_put", Cost::kNone},
      {"index_select", Cost::kNone},
      {"lift_fresh", Cost::kNone},
      {"masked_select", Cost::kNone},
      {"narrow", Cost::kNone},
      {"new_empty", Cost::kNone},
      {"new_full", Cost::kNone},
      {"new_zeros", Cost::kNone},
      {"one_hot", Cost::kNone},
      {"ones", Cost::kNone},
      {"ones_like", Cost::kNone},
      {"permute", Cost::kNone},
      {"repeat", Cost::kNone},
      {"repeat_interleave", Cost::kNone},
      {"reshape", Cost::kNone},
      {"resize", Cost::kNone},
      {"roll", Cost::kNone},
      {"scatter", Cost::kNone},
      {"select", Cost::kNone},
      {"select_backward", Cost::kNone},
      {"select_scatter", Cost::kNone},
      {"set", Cost::kNone},
      {"slice", Cost::kNone},
      {"slice_backward", Cost::kNone},
      {"slice_scatter", Cost::kNone},
      {"split", Cost::kNone},
      {"split_with_sizes", Cost::kNone},
      {"split_with_sizes_copy", Cost::kNone},
      {"squeeze", Cost::kNone},
      {"stack", Cost::kNone},
      {"t", Cost::kNone},
      {"to", Cost::kNone},
      {"transpose", Cost::kNone},
      {"tril", Cost::kNone},
      {"triu", Cost::kNone},
      {"unbind", Cost::kNone},
      {"unfold", Cost::kNone},
      {"unsqueeze", Cost::kNone},
      {"view", Cost::kNone},
      {"zero", Cost::kNone},
      {"zeros", Cost::kNone},
      {"zeros_like", Cost::kNone},
      {"_copy_from", Cost::kNone},
      {"_copy_from_and_resize", Cost::kNone},
      {"_foreach_copy", Cost::kNone},
      {"_foreach_zero", Cost::kNone},
      {"_local_scalar_dense", Cost::kNone},
      {"_reshape_alias", Cost::kNone},
      {"_to_copy", Cost::kNone},
      {"_unsafe_view", Cost::kNone},
  });
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.op < b.op; });
  return rows;
}();

Cost cost_of(std::string_view op) {
  const auto row =
      std::lower_bound(kCosts.begin(), kCosts.end(), op,
                       [](const Row& r, std::string_view name) { return r.op < name; });
  return row != kCosts.end() && row->op == op ? row->cost : Cost::kElementwise;
}

bool is_causal(std::string_view scalars) {
  while (!scalars.empty()) {
    const std::string_view token = scalars.substr(0, scalars.find(' '));
    if (token == "is_causal=1" || token == "causal=1" || token == "causal") return true;
    scalars.remove_prefix(std::min(scalars.size(), token.size() + 1));
  }
  return false;
}

class FlopCounter {
 public:
  FlopCounter(const Graph& graph, const Node& node) : graph_(graph), node_(node) {}

  [[nodiscard]] std::int64_t run() const {
    if (node_.kind != Node::Kind::kOp) return 0;
    switch (cost_of(plain_name(node_.op))) {
      case Cost::kElementwise: return written();
      case Cost::kNone: return 0;
      case Cost::kReduction: return reduction();
      case Cost::kMatmul: return 2 * output() * last_size(0);
      case Cost::kAddMatmul: return 2 * output() * last_size(1);
      case Cost::kAddBatchSum: return 2 * output() * last_size(1) * size(1, 0);
      case Cost::kGroupedMatmul: return grouped_matmul();
      case Cost::kAttention: return attention(0);
      case Cost::kAttentionBackward:
        return attention(1) * 5 /
               2;  // 5 products instead of 2: q·k again, and one for each of dv, dp, dq, dk
      case Cost::kConvolution: return convolution();
      case Cost::kConvolutionBackward: return convolution_backward();
      case Cost::kScatterAdd: return scattered();
    }
    return 0;
  }

 private:
  [[nodiscard]] const TensorView* input(std::size_t i) const {
    return i < node_.inputs.size() ? &graph_.values[node_.inputs[i]].view : nullptr;
  }
  [[nodiscard]] std::int64_t elements(std::size_t i) const {
    return input(i) == nullptr ? 0 : input(i)->elements();
  }
  [[nodiscard]] std::int64_t output() const {
    return node_.outputs.empty() ? 0 : graph_.values[node_.outputs[0]].view.elements();
  }

  [[nodiscard]] std::int64_t size(std::size_t i, std::size_t dim) const {
    const TensorView* view = input(i);
    return view == nullptr || dim >= view->sizes.size() ? 1 : view->sizes[dim];
  }
  [[nodiscard]] std::int64_t last_size(std::size_t i) const {
    const TensorView* view = input(i);
    return view == nullptr || view->sizes.empty() ? 1 : view->sizes.back();
  }

  /// Of every distinct output: an in-place operation on lists may name one twice.
  [[nodiscard]] std::int64_t written() const {
    std::int64_t sum = 0;
    for (std::uint32_t value : std::set<std::uint32_t>(node_.outputs.begin(), node_.outputs.end()))
      sum += graph_.values[value].view.elements();
    return sum;
  }

  /// max.other and min.other are element-wise, with a result that may be larger than the first
  /// input.
  [[nodiscard]] std::int64_t reduction() const {
    if (!node_.op.starts_with("_foreach")) return std::max(elements(0), output());
    const std::set<std::uint32_t> outputs(node_.outputs.begin(), node_.outputs.end());
    std::int64_t sum = 0;
    for (std::uint32_t value : node_.inputs)
      sum += outputs.contains(value) ? 0 : graph_.values[value].view.elements();
    return sum;
  }

  /// With two matrices the offsets divide the inner dimension: each group has a part of it. Else a
  /// group has its own matrix, or its own rows or columns of the result.
  [[nodiscard]] std::int64_t grouped_matmul() const {
    const bool divides_inner =
        input(0) != nullptr && input(0)->sizes.size() == 2 && input(1)->sizes.size() == 2;
    return 2 * (divides_inner ? elements(0) * last_size(1) : output() * last_size(0));
  }

  /// Both products of every query row with every key that it may see; `first` is the query's place.
  [[nodiscard]] std::int64_t attention(std::size_t first) const {
    const TensorView* query = input(first);
    if (query == nullptr || query->sizes.size() < 2) return 0;
    const std::size_t rows = query->sizes.size() - 2;
    const std::int64_t all = 2 * query->elements() / std::max<std::int64_t>(1, last_size(first)) *
                             size(first + 1, rows) * (last_size(first) + last_size(first + 2));
    return is_causal(node_.scalars) ? all / 2 : all;
  }

  /// Products per element of the side that the weight [this side's or the other's channels, …] fans
  /// out from.
  [[nodiscard]] std::int64_t taps(std::size_t weight) const {
    return elements(weight) / std::max<std::int64_t>(1, size(weight, 0));
  }
  [[nodiscard]] bool transposed() const {
    return node_.scalars.find("transposed=1") != std::string::npos;
  }

  [[nodiscard]] std::int64_t convolution() const {
    return 2 * (transposed() ? elements(0) : output()) * taps(1);
  }

  /// Inputs: gradient, input, weight. The gradients of input and weight cost a forward each; the
  /// bias's is a sum.
  [[nodiscard]] std::int64_t convolution_backward() const {
    const std::int64_t forward = 2 * elements(transposed() ? 1 : 0) * taps(2);
    std::int64_t sum = 0;
    for (std::uint32_t value : node_.outputs)
      sum += graph_.values[value].view.sizes.size() > 1 ? forward : elements(0);
    return sum;
  }

  /// One addition per element that is added: scatter_add(self, index, source), index_add(self,
  /// index, source), embedding_dense_backward(gradient, indices).
  [[nodiscard]] std::int64_t scattered() const {
    return plain_name(node_.op) == "embedding_dense_backward" ? elements(0) : elements(2);
  }

  const Graph& graph_;
  const Node& node_;
};

}  // namespace

std::int64_t node_flops(const Graph& graph, const Node& node) {
  return FlopCounter(graph, node).run();
}

}  // namespace trellis::device
