#include <unordered_map>

#include "device/compiler/lowering.h"

namespace trellis::device {

LowerFunction find_lowering(std::string_view plain_name) {
  static const std::unordered_map<std::string_view, LowerFunction> kTable{
      {"mm", lower_matmul}, {"addmm", lower_matmul}, {"bmm", lower_matmul}, {"baddbmm", lower_matmul}, {"linear", lower_matmul}, {"matmul", lower_matmul},
      {"mm_gelu", lower_matmul}, {"addmm_gelu", lower_matmul}, {"mm_gelu_backward", lower_matmul},
      {"mv", lower_matmul}, {"addmv", lower_matmul}, {"dot", lower_matmul},
      {"_scaled_dot_product_flash_attention_for_cpu", lower_attention}, {"_scaled_dot_product_fused_attention_overrideable", lower_attention},
      {"_scaled_dot_product_flash_attention_for_cpu_backward", lower_attention_backward},
      {"_scaled_dot_product_fused_attention_overrideable_backward", lower_attention_backward},
      {"embedding", lower_rows_gather}, {"index_select", lower_rows_gather}, {"index", lower_rows_gather}, {"gather", lower_rows_gather},
      {"embedding_dense_backward", lower_embedding_backward}, {"index_add", lower_rows_add}, {"scatter_add", lower_rows_add}, {"index_put", lower_rows_add},
      {"nll_loss_forward", lower_nll_loss}, {"nll_loss_backward", lower_nll_loss_backward},
      {"topk", lower_top_k}, {"cat", lower_cat}, {"stack", lower_cat}, {"slice_backward", lower_padded}, {"select_backward", lower_padded}, {"constant_pad_nd", lower_padded},
      {"repeat", lower_repeat}, {"arange", lower_range}, {"_local_scalar_dense", lower_to_host},
  };
  const auto found = kTable.find(plain_name);
  return found == kTable.end() ? nullptr : found->second;
}

double estimated_passes(std::string_view plain_name) {
  // Passes over all elements on GpSimd: sorting and selecting from hardware.md §2.8, the others by their arithmetic.
  static const std::unordered_map<std::string_view, double> kTable{
      {"sort", 16}, {"argsort", 16}, {"argmax", 2}, {"argmin", 2}, {"max", 2}, {"min", 2}, {"cumsum", 2}, {"cumprod", 2}, {"nonzero", 2},
      {"normal", 6}, {"uniform", 2}, {"bernoulli", 3}, {"random", 2}, {"randperm", 16}, {"native_dropout", 3}, {"dropout", 3}, {"randn", 6}, {"rand", 2},
      {"randint", 2}, {"multinomial", 8}, {"exponential", 4}, {"tril", 1}, {"triu", 1}, {"flip", 1}, {"roll", 1}, {"one_hot", 2}, {"scatter", 2},
      {"index_copy", 2}, {"index_fill", 2}, {"bincount", 2}, {"unique", 16}, {"_unique2", 16}, {"repeat_interleave", 2}, {"eye", 1}, {"linspace", 1},
      {"erfinv", 8}, {"prod", 2}, {"native_dropout_backward", 2}, {"slice_scatter", 2}, {"select_scatter", 2}, {"diag_embed", 1}, {"tril_indices", 2},
      {"triu_indices", 2}, {"histc", 4}, {"searchsorted", 8}, {"bucketize", 8}, {"convolution", 8}, {"convolution_backward", 16}, {"upsample_nearest2d", 2},
      {"masked_select", 3}, {"kthvalue", 8}, {"median", 8}, {"mode", 8}, {"_assert_async", 1}, {"polar", 2}, {"atan2", 4}, {"atan", 2}, {"acos", 2}, {"asin", 2},
      {"tan", 2}, {"sinh", 2}, {"cosh", 2}, {"erfc", 2}, {"lgamma", 4}, {"digamma", 4}, {"nan_to_num", 3}, {"hardtanh", 1}, {"elu", 3}, {"mish", 3},
      {"hardswish", 3}, {"_grouped_mm", 8}, {"isin", 4}, {"bitwise_left_shift", 1}, {"bitwise_right_shift", 1}, {"__lshift__", 1}, {"__rshift__", 1},
      {"masked_scatter", 3}, {"diagonal_backward", 2}, {"trace", 1}, {"argwhere", 3}, {"cross", 3}, {"put", 2}, {"take", 2}, {"aminmax", 2}, {"logcumsumexp", 4}};
  const auto found = kTable.find(plain_name);
  return found == kTable.end() ? 0 : found->second;
}

}  // namespace trellis::device
