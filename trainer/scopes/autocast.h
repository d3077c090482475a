#pragma once

#include <ATen/autocast_mode.h>

namespace trellis::trainer {

/// torch.autocast(bf16) on a device type for the lifetime of the object, on this thread and in the
/// backward passes that it starts. Casts of weights are not kept: every micro-batch then does the
/// same operations.
class AutocastScope {
 public:
  AutocastScope(at::DeviceType device, bool enabled)
      : device_(device),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        was_cached_(at::autocast::is_autocast_cache_enabled()),
        previous_dtype_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, at::kBFloat16);
    at::autocast::set_autocast_cache_enabled(false);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
  ~AutocastScope() {
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, previous_dtype_);
    at::autocast::set_autocast_cache_enabled(was_cached_);
  }

 private:
  at::DeviceType device_;
  bool was_enabled_, was_cached_;
  at::ScalarType previous_dtype_;
};

}  // namespace trellis::trainer
