#include <ATen/autocast_mode.h>
#include <torch/library.h>

/// Autocast on `neuron` follows PyTorch's own lists of operators; everything else runs in the type
/// of its arguments.
namespace {

using namespace at;  // NOLINT: the macros below name types without their namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define TRELLIS_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TRELLIS_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define TRELLIS_FP32_OPTION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define TRELLIS_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(TRELLIS_LOWER)
  AT_FORALL_FP32(TRELLIS_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TRELLIS_FP32_OPTION)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(TRELLIS_PROMOTE)
#undef TRELLIS_LOWER
#undef TRELLIS_FP32
#undef TRELLIS_FP32_OPTION
#undef TRELLIS_PROMOTE
}

}  // namespace
