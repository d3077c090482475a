#include <numeric>

#include "device/compiler/gemm/gemm.h"
#include "device/compiler/gemm/lower_gemm.h"
#include "device/compiler/graph/recipe.h"
#include "device/compiler/ops/lowering.h"

namespace trellis::device {
namespace {

HbmView with_leading(HbmView v, std::size_t rank) {
  while (v.rank() < rank) {
    v.sizes.insert(v.sizes.begin(), 1);
    v.strides.insert(v.strides.begin(), 0);
  }
  return v;
}

/// Broadcasts to `sizes`, aligned at the last dimension.
HbmView broadcast(HbmView v, const std::vector<std::int64_t>& sizes) {
  v = with_leading(std::move(v), sizes.size());
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (v.sizes[d] != sizes[d]) v.strides[d] = 0;
  }
  v.sizes = sizes;
  return v;
}

/// [.., rows, k] as [rows', k] when the leading dimensions merge in both; else they stay as batch.
bool merge_rows(HbmView& x, HbmView& y) {
  std::vector<std::int64_t> sizes(x.sizes.begin(), x.sizes.end() - 1);
  std::vector<std::vector<std::int64_t>> strides{{x.strides.begin(), x.strides.end() - 1},
                                                 {y.strides.begin(), y.strides.end() - 1}};
  collapse(sizes, strides);
  if (sizes.size() != 1) return false;
  x.sizes = {sizes[0], x.sizes.back()};
  y.sizes = {sizes[0], y.sizes.back()};
  x.strides = {strides[0][0], x.strides.back()};
  y.strides = {strides[1][0], y.strides.back()};
  return true;
}

/// Forms that fuse_results writes: a product that leaves PSUM through an activation, or through the
/// derivative of one.
struct ProductForm {
  std::string product;
  isa::Activation activation = isa::Activation::kIdentity;
  bool activates = false, multiplies = false;
};
ProductForm product_form(const std::string& name) {
  if (name == "mm_gelu") return {"mm", isa::Activation::kGelu, true, false};
  if (name == "addmm_gelu") return {"addmm", isa::Activation::kGelu, true, false};
  if (name == "mm_gelu_backward") return {"mm", isa::Activation::kGeluGrad, false, true};
  return {name};
}

}  // namespace

void lower_matmul(Lowering& lowering, const Node& node, std::uint32_t index) {
  const std::string whole_name = plain_name(node.op);
  const ProductForm form = product_form(whole_name);
  const std::string& name = form.product;
  const Scalars scalars(node.scalars);
  Gemm gemm;
  gemm.c = lowering.output(node, 0);
  const bool added = name == "addmm" || name == "baddbmm" || name == "addmv";
  gemm.a = lowering.input(node, added ? 1 : 0);
  gemm.b = lowering.input(node, added ? 2 : 1);
  if (name == "linear") {
    gemm.b = transposed(gemm.b, 0, 1);
    if (node.inputs.size() > 2) gemm.addend = lowering.input(node, 2);
  }
  if (name == "mv" || name == "addmv" || name == "dot") {  // a vector is a matrix of one column
    if (name == "dot") gemm.a.sizes = {1, gemm.a.sizes[0]}, gemm.a.strides = {0, gemm.a.strides[0]};
    gemm.b.sizes.push_back(1), gemm.b.strides.push_back(1);
    if (name == "dot")
      gemm.c.sizes = {1, 1}, gemm.c.strides = {1, 1};
    else
      gemm.c.sizes.push_back(1), gemm.c.strides.push_back(1);
  }
  if (added) {
    gemm.alpha = scalars.number("alpha", 1);
    gemm.beta = scalars.number("beta", 1);
    if (gemm.beta != 0) gemm.addend = lowering.input(node, 0);
    if (name == "addmv" && gemm.addend)
      gemm.addend->sizes.push_back(1), gemm.addend->strides.push_back(1);
  }
  gemm.activation = form.activation;
  if (form.activates) gemm.activated = lowering.output(node, 1);
  if (form.multiplies) gemm.factor = lowering.input(node, node.inputs.size() - 1);
  const auto kernel = lowering.kernel(whole_name, index, node_flops(lowering.graph(), node));
  if (gemm.a.elements() == 0 || gemm.b.elements() == 0)
    return fill_view(lowering, kernel, gemm.c, 0);
  if (gemm.b.rank() == 2 && gemm.a.rank() != 2) {
    if (!merge_rows(gemm.a, gemm.c))
      gemm.b = broadcast(gemm.b, [&] {
        auto sizes = gemm.a.sizes;
        sizes.back() = gemm.b.sizes[1];
        sizes[sizes.size() - 2] = gemm.b.sizes[0];
        return sizes;
      }());
  }
  if (gemm.addend) gemm.addend = broadcast(*gemm.addend, gemm.c.sizes);
  lower_gemm(lowering.builder(), kernel, std::move(gemm));
}

}  // namespace trellis::device
