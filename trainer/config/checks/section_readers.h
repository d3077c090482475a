#pragma once

#include "trainer/config/reader/section_reader.h"

namespace trellis::trainer {

/// The readers of the sections of a run's YAML.
struct SectionReaders {
  SectionReader root, trainer, exp_manager, distributed_strategy, data, model, optim, precision,
      alignment;
};

}  // namespace trellis::trainer
