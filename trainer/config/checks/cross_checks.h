#pragma once

#include "trainer/config/checks/section_readers.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// The rules between values: what divides what, what needs what. Each rule is skipped when a value
/// it builds on had its own problem.
void cross_check(const RunConfig& config, SectionReaders& readers);

}  // namespace trellis::trainer
