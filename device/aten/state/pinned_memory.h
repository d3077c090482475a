#pragma once

#include <ATen/core/CachingHostAllocator.h>

/// Page-locked host memory. The host cannot lock pages for a device that is not there: what is
/// modelled is which memory it is, so that `is_pinned()` and the record of a copy tell.
namespace trellis::device {

[[nodiscard]] at::HostAllocator& pinned_allocator();
/// True for any address inside a living pinned allocation.
[[nodiscard]] bool is_pinned(const void* address);

}  // namespace trellis::device
