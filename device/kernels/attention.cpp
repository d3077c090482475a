#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "device/compiler/attention/lower_attention.h"
#include "device/kernels/builders.h"

namespace trellis::device {
namespace {

using sim::isa::DType;

constexpr std::int64_t kMaxHead = 128;

std::vector<std::int64_t> query_shape(const KernelInput& in) {
  return {in.size("batch"), in.size("heads"), in.size("queries"), in.size("d")};
}
std::vector<std::int64_t> key_shape(const KernelInput& in) {
  return {in.size("batch"), in.size("kv_heads"), in.size("keys"), in.size("d")};
}
/// Keys after the last query are seen by none.
KernelOperand keys(const KernelInput& in, const char* name) {
  const std::int64_t seen =
      in.flag("causal") ? std::min(in.size("queries"), in.size("keys")) : in.size("keys");
  return {name, key_shape(in), in.dtype, false,
          in.size("batch") * in.size("kv_heads") * seen * in.size("d")};
}
std::vector<std::int64_t> row_shape(const KernelInput& in) {
  return {in.size("batch"), in.size("heads"), in.size("queries")};
}
std::string scalars(const KernelInput& in) {
  return std::string("dropout_p=0 is_causal=") + (in.flag("causal") ? "1" : "0");
}

void check_heads(const KernelInput& in) {
  Problems problems;
  if (in.size("heads") % in.size("kv_heads") != 0) {
    problems.add(in.spec.name + ".kv_heads",
                 fmt::format("expected a divisor of the {} query heads, got {}", in.size("heads"),
                             in.size("kv_heads")));
  }
  if (in.size("d") > kMaxHead)
    problems.add(
        in.spec.name + ".d",
        fmt::format("expected at most {}, the rows of the array, got {}", kMaxHead, in.size("d")));
  problems.throw_if_any();
}

Operands forward_operands(const KernelInput& in) {
  return {{"q", query_shape(in), in.dtype},
          keys(in, "k"),
          keys(in, "v"),
          {"out", query_shape(in), in.dtype, true},
          {"logsumexp", row_shape(in), DType::kFp32, true}};
}
void forward(GraphWriter& g, const KernelInput& in) {
  g.node("_scaled_dot_product_flash_attention_for_cpu", {g["q"], g["k"], g["v"]},
         {g["out"], g["logsumexp"]}, scalars(in));
}

Operands backward_operands(const KernelInput& in) {
  const auto q = query_shape(in), k = key_shape(in);
  return {{"grad_out", q, in.dtype},
          {"q", q, in.dtype},
          keys(in, "k"),
          keys(in, "v"),
          {"out", q, in.dtype},
          {"logsumexp", row_shape(in), DType::kFp32},
          {"grad_q", q, in.dtype, true},
          {"grad_k", k, in.dtype, true},
          {"grad_v", k, in.dtype, true}};
}
void backward(GraphWriter& g, const KernelInput& in) {
  g.node("_scaled_dot_product_flash_attention_for_cpu_backward",
         {g["grad_out"], g["q"], g["k"], g["v"], g["out"], g["logsumexp"]},
         {g["grad_q"], g["grad_k"], g["grad_v"]}, scalars(in));
}

/// FLOPs of `products` matrix products over the pairs of a query and a key that it sees.
std::int64_t window_flops(const KernelInput& in, std::int64_t products) {
  const std::int64_t length = in.size("queries"), seen = std::min(in.size("window"), length),
                     pairs = seen * length - seen * (seen - 1) / 2;
  return 2 * products * in.size("batch") * in.size("heads") * in.size("d") * pairs;
}

/// The graph's operations know no window: `lower(builder, kernel, views, scale)` calls the lowering
/// by itself.
template <typename Lower>
BuiltKernel build_window(const KernelInput& in, const Operands& operands, std::int64_t flops,
                         Lower lower) {
  ProgramBuilder builder(in.spec.name, in.core());
  std::vector<HbmView> views;
  for (const KernelOperand& o : operands) {
    const auto slot = static_cast<std::int32_t>(views.size());
    views.push_back(contiguous(builder.add_hbm(o.name, o.bytes(), slot), o.dtype, o.sizes));
  }
  if (!lower(builder, builder.add_kernel({in.spec.name, 0, flops, false}), views,
             1 / std::sqrt(static_cast<double>(in.size("d"))))) {
    throw ConfigError(fmt::format(
        "{}: a window needs --causal and as many keys as queries, a multiple of 512, and SBUF must "
        "hold the window, "
        "got window {} over {} queries and {} keys; leave --window out or make it smaller",
        in.spec.name, in.size("window"), in.size("queries"), in.size("keys")));
  }
  return {builder.finish(), flops, {}};
}

BuiltKernel build_forward(const KernelInput& in, const Operands& operands) {
  check_heads(in);
  if (in.size("window") == 0) return build_graph<forward>(in, operands);
  return build_window(in, operands, window_flops(in, 2),
                      [&](ProgramBuilder& builder, std::uint32_t kernel,
                          const std::vector<HbmView>& v, double scale) {
                        return lower_attention(builder, kernel,
                                               {v[0], v[1], v[2], v[3], v[4], in.flag("causal"),
                                                scale, in.size("window")});
                      });
}

BuiltKernel build_backward(const KernelInput& in, const Operands& operands) {
  check_heads(in);
  if (in.size("window") == 0) return build_graph<backward>(in, operands);
  return build_window(in, operands, window_flops(in, 5),
                      [&](ProgramBuilder& builder, std::uint32_t kernel,
                          const std::vector<HbmView>& v, double scale) {
                        return lower_attention_backward(
                            builder, kernel,
                            {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8],
                             in.flag("causal"), scale, in.size("window")});
                      });
}

}  // namespace

std::vector<KernelSpec> attention_kernels() {
  const std::vector<KernelParameter> sizes{
      {"batch", 1, "sequences"},
      {"heads", 1, "query heads"},
      {"kv_heads", 1, "key heads; they divide the query heads"},
      {"queries", 4096, "per sequence"},
      {"keys", 4096, "per sequence"},
      {"d", 128, "size of a head, at most 128"},
      {"causal", 1, "query i sees the keys up to i", true},
      {"window", 0, "keys that a query sees, itself the last; 0: all of them"}};
  const std::vector<DType> dtypes{DType::kBf16, DType::kFp16, DType::kFp32};
  return {
      {"flash_attention",
       "out = softmax(q kᵀ / √d) v",
       "attention of a prompt or of training, scores stay on chip",
       sizes,
       dtypes,
       {},
       {"batch", "heads"},
       forward_operands,
       build_forward},
      {"flash_attention_backward",
       "gradients of q, k and v",
       "the backward pass, scores computed again",
       sizes,
       dtypes,
       {},
       {"batch", "heads"},
       backward_operands,
       build_backward},
  };
}

}  // namespace trellis::device
