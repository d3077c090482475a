#pragma once

#include <torch/library.h>

namespace trellis::device {

/// The operators that programs call most, without a stack between caller and kernel: it costs as
/// much as a small operator itself. They do what the boxed kernel does, and leave to it every call
/// with anything but strided tensors of one rank.
void register_direct_kernels(torch::Library& library);

}  // namespace trellis::device
