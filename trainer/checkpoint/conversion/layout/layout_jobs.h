#pragma once

#include <cstdint>
#include <vector>

#include "trainer/checkpoint/formats/native/state_files.h"
#include "trainer/config/run_config.h"

namespace trellis::checkpoint {

/// Numbers of a training that its optimizer files hold.
struct LayoutNumbers {
  std::int64_t optimizer_steps = 0;
  double lr = 0;
};

/// Which files, and what is in them.
struct LayoutParts {
  bool weights_only = false;  ///< no optimizer states
  bool trained_only = false;  ///< no weights that fine-tuning with adapters leaves as they are
};

/// The files that a rank of a run of `config` saves, of those that it saves alone or as the first
/// of equal ranks: its model and optimizer are built without memory, on the device meta, so the
/// tensors have shapes and types and no values, except those that are the same in every run.
/// Independent of all other ranks; may run on several threads. Throws ConfigError when the model
/// cannot be laid out so.
[[nodiscard]] std::vector<native::FileJob> layout_jobs(const trainer::RunConfig& config, int rank,
                                                       const native::FileOptions& options,
                                                       const LayoutNumbers& numbers,
                                                       const LayoutParts& parts = {});

}  // namespace trellis::checkpoint
