#pragma once

#include <memory>

#include "runtime/process_link.h"
#include "trainer/app/run_request.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// Joins the other processes of this run when a launcher started several (see base/launch.h); null:
/// this process is alone. Every process must have the same program, resolved configuration and
/// device. Throws ConfigError, also for what works in one process only: checkpoints, mixtures of
/// experts, dpo, and more or fewer processes than the ranks can be shared out to.
[[nodiscard]] std::unique_ptr<runtime::ProcessLink> join_job(const RunRequest& request,
                                                             const RunConfig& config);

}  // namespace trellis::trainer
