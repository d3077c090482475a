#pragma once

#include <cstdint>
#include <optional>

#include "device/compiler/emit/hbm_view.h"
#include "device/compiler/emit/program_builder.h"

namespace trellis::device {

/// Bytes next to each other below which a transfer is slow: a descriptor costs as much as 1 KiB.
inline constexpr std::int64_t kShortRun = 128;
/// Elements: below, slow descriptors cost less than a phase.
inline constexpr std::int64_t kWorthLayout = 4096;

/// True for a view of at least kWorthLayout elements that would be moved, in the order of its
/// dimensions, in runs of less than kShortRun bytes. Dimensions of stride 0 at the end do not
/// count: one element is read for all.
[[nodiscard]] bool moves_in_short_runs(const HbmView& view);

/// Copies `source` into `target`, which has its sizes and another order of memory, through SBUF:
/// both are moved in long runs, and the order changes on the Tensor engine or inside partitions.
/// False, with nothing emitted, when descriptors from HBM to HBM are as good, or when no order has
/// long runs on both sides. REQUIRES: no stride of `target` is 0.
bool relayout(ProgramBuilder& builder, std::uint32_t kernel, const HbmView& source,
              const HbmView& target);

/// True if relayout would emit the copy.
[[nodiscard]] bool can_relayout(const ProgramBuilder& builder, const HbmView& source,
                                const HbmView& target);

/// A copy of `source` in scratch, dense in the order of its dimensions; those of stride 0 keep it.
/// Nullopt as relayout.
[[nodiscard]] std::optional<HbmView> dense_copy(ProgramBuilder& builder, std::uint32_t kernel,
                                                const HbmView& source);

}  // namespace trellis::device
