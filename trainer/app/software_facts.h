#pragma once

#include "trainer/config/run_config.h"
#include "trainer/report/software_memory.h"

namespace trellis::trainer {

[[nodiscard]] SoftwareFacts software_facts(const RunConfig& config, bool functionalization);

}  // namespace trellis::trainer
