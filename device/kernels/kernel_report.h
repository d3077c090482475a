#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "device/kernels/kernel.h"
#include "traces/timeline.h"

namespace trellis::device {

/// Tables for people and documents for scripts.
[[nodiscard]] std::string timing_text(const KernelTiming& timing, const std::string& instance);
[[nodiscard]] nlohmann::json timing_json(const KernelTiming& timing,
                                         const std::string& instance);  ///< schema trellis.kernel/1
[[nodiscard]] std::string catalogue_text();
[[nodiscard]] nlohmann::json catalogue_json();  ///< schema trellis.kernels/1

/// Engines and DMA queue groups of each core as tracks, the program's kernels as slices: every
/// stretch of work when the timing has them (TimeOptions::pieces), else from a kernel's first
/// instruction to its last.
[[nodiscard]] traces::Timeline kernel_timeline(const KernelTiming& timing);

}  // namespace trellis::device
