#pragma once

#include <string>
#include <vector>

#include "trainer/config/run_source.h"

namespace trellis::trainer {

/// Arguments of `trellis memory`: one run, of which only the memory is measured. Plain data: the
/// program hands it to libtrellis_trainer.so.
struct MemoryRequest : RunSource {
  int steps = 1;
  double timeout_s = 100;
  bool functionalization = false;  ///< the software's: see SoftwareFacts
};

}  // namespace trellis::trainer
