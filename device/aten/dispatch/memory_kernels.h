#pragma once

#include <torch/library.h>

namespace trellis::device {

/// Kernels that no fallback can give: allocation, views, copies between host and device, reading
/// one element.
void register_memory_kernels(torch::Library& library);
void register_copy_kernels(torch::Library& library);

}  // namespace trellis::device
