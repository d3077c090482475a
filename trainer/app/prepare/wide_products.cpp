#include "trainer/app/prepare/wide_products.h"

#include <optional>
#include <tuple>

#include <ATen/Version.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <torch/library.h>

namespace trellis::trainer {
namespace {

using at::Scalar;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool is_narrow(const Tensor& tensor) { return tensor.scalar_type() == at::kBFloat16; }

/// Operands of several types stay as they are: LibTorch refuses them.
template <typename... Tensors>
bool are_narrow(const Tensors&... tensors) {
  return (is_narrow(tensors) && ...);
}

Tensor wide(const Tensor& tensor) { return tensor.to(at::kFloat); }
Tensor narrow(const Tensor& tensor) { return tensor.to(at::kBFloat16); }
OptionalTensor wide_mask(const OptionalTensor& mask) {
  return mask && mask->defined() && is_narrow(*mask) ? wide(*mask) : mask;
}

Tensor mm(const Tensor& a, const Tensor& b) {
  return are_narrow(a, b) ? narrow(at::cpu::mm(wide(a), wide(b))) : at::cpu::mm(a, b);
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  return are_narrow(a, b) ? narrow(at::cpu::bmm(wide(a), wide(b))) : at::cpu::bmm(a, b);
}

Tensor addmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
             const Scalar& alpha) {
  if (!are_narrow(self, a, b)) return at::cpu::addmm(self, a, b, beta, alpha);
  return narrow(at::cpu::addmm(wide(self), wide(a), wide(b), beta, alpha));
}

Tensor baddbmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
               const Scalar& alpha) {
  if (!are_narrow(self, a, b)) return at::cpu::baddbmm(self, a, b, beta, alpha);
  return narrow(at::cpu::baddbmm(wide(self), wide(a), wide(b), beta, alpha));
}

std::tuple<Tensor, Tensor> attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                     double dropout_p, bool is_causal, const OptionalTensor& mask,
                                     std::optional<double> scale) {
  if (!are_narrow(query, key, value))
    return at::cpu::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p,
                                                                is_causal, mask, scale);
  const auto [output, logsumexp] = at::cpu::_scaled_dot_product_flash_attention_for_cpu(
      wide(query), wide(key), wide(value), dropout_p, is_causal, wide_mask(mask), scale);
  return {narrow(output), logsumexp};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& grad_out, const Tensor& query,
                                                      const Tensor& key, const Tensor& value,
                                                      const Tensor& out, const Tensor& logsumexp,
                                                      double dropout_p, bool is_causal,
                                                      const OptionalTensor& mask,
                                                      std::optional<double> scale) {
  if (!are_narrow(grad_out, query, key, value, out))
    return at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, mask, scale);
  const auto [dq, dk, dv] = at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward(
      wide(grad_out), wide(query), wide(key), wide(value), wide(out), logsumexp, dropout_p,
      is_causal, wide_mask(mask), scale);
  return {narrow(dq), narrow(dk), narrow(dv)};
}

/// LibTorch warns that a kernel is replaced, which is what this file is for.
class Silence : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

torch::Library replaced_kernels() {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library.impl("mm", TORCH_FN(mm));
  library.impl("bmm", TORCH_FN(bmm));
  library.impl("addmm", TORCH_FN(addmm));
  library.impl("baddbmm", TORCH_FN(baddbmm));
  library.impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(attention));
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward",
               TORCH_FN(attention_backward));
  return library;
}

}  // namespace

void use_wide_products() {
  static const bool has_kernels =
      at::get_cpu_capability() != "AVX2" && at::get_cpu_capability() != "DEFAULT";
  if (has_kernels) return;
  static const auto* const library = new torch::Library(replaced_kernels());
  static_cast<void>(library);
}

}  // namespace trellis::trainer
