#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/run_source.h"

namespace trellis::trainer {

struct BuildRequest;

/// Arguments of `trellis data inspect CONFIG`. Plain data: the program hands it to
/// libtrellis_trainer.so.
struct DataInspectRequest : RunSource {
  std::int64_t step = 0;
  std::optional<std::int64_t> consumed_samples;  ///< of a run that is resumed at `step`; none: of a
                                                 ///< run that began at step 0
  int data_parallel_rank = 0;
  std::int64_t rows = 2;
  bool json = false;
};

}  // namespace trellis::trainer
