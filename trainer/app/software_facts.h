#pragma once

#include "trainer/config/run_config.h"
#include "analysis/report/software_memory.h"

namespace trellis::trainer {

[[nodiscard]] analysis::SoftwareFacts software_facts(const RunConfig& config,
                                                     bool functionalization);

}  // namespace trellis::trainer
