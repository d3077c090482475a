#pragma once

#include <memory>

#include "runtime/links/process_link.h"
#include "trainer/config/run_config.h"
#include "trainer/requests/run_request.h"

namespace trellis::runtime {
class RankContext;
}

namespace trellis::trainer {

/// Joins the other processes of this run when a launcher started several (see
/// base/process/launch.h); null: this process is alone. Every process must have the same program,
/// resolved configuration and device. Throws ConfigError, also for a number of processes that the
/// ranks cannot be shared out to.
[[nodiscard]] std::unique_ptr<runtime::ProcessLink> join_job(const RunRequest& request,
                                                             const RunConfig& config);

/// Throws ConfigError when this process goes on from another checkpoint than the first one.
/// `address`: of what it found; "": none.
void check_equal_start(runtime::ProcessLink& link, const std::string& address);

/// Collective, after an interrupt: whether SIGTERM came to any process of the job.
[[nodiscard]] bool agree_on_sigterm(runtime::RankContext& rank, bool came_here);

}  // namespace trellis::trainer
