#include <array>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

/// Operators made of others, whose first lines refuse half precision on devices other than CUDA:
/// here they compute in single precision.
namespace trellis::device {
namespace {

constexpr std::array kTransforms = {
    "fft_fft",  "fft_ifft",  "fft_rfft",  "fft_irfft",  "fft_hfft",  "fft_ihfft",   //
    "fft_fft2", "fft_ifft2", "fft_rfft2", "fft_irfft2", "fft_hfft2", "fft_ihfft2",  //
    "fft_fftn", "fft_ifftn", "fft_rfftn", "fft_irfftn", "fft_hfftn", "fft_ihfftn"};

c10::ScalarType wider(c10::ScalarType type) {
  return type == at::kHalf ? at::kFloat : type == at::kComplexHalf ? at::kComplexFloat : type;
}

/// Above autograd, so that the conversions have their derivatives.
void transform(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::IValue& first = (*stack)[stack->size() - op.schema().arguments().size()];
  const at::Tensor input = first.toTensor();
  const c10::ScalarType type = wider(input.scalar_type());
  const bool narrow = type != input.scalar_type();
  if (narrow) first = input.to(type);
  // Made of other operators, it is the same for every backend.
  op.getComputedKernelForDispatchKey(c10::DispatchKey::CPU).callBoxed(op, keys, stack);
  if (!narrow) return;
  const at::Tensor result = stack->back().toTensor();
  stack->back() = result.to(result.is_complex() ? at::kComplexHalf : at::kHalf);
}

void register_transforms(torch::Library& library) {
  for (const char* name : kTransforms) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&transform>());
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) { register_transforms(library); }
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) { register_transforms(library); }

}  // namespace
}  // namespace trellis::device
