#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/process/launch.h"

namespace trellis::runtime {

/// Where the processes of a job find each other: LibTorch's TCPStore. Process 0 serves it, on the
/// address of this machine that MASTER_ADDR names and no other; where that is none of this
/// machine's, on all interfaces, and a message says so. Names begin with store_prefix(). Throws
/// ConfigError: MASTER_ADDR does not resolve, the port is in use, there is no process 0.
[[nodiscard]] c10::intrusive_ptr<c10d::Store> open_job_store(const Launch& launch,
                                                             std::chrono::milliseconds patience);

/// Separates jobs and strangers that reach the same store: TRELLIS_STORE_SECRET, or the
/// launcher's number of the job, which is no secret.
[[nodiscard]] std::string store_prefix(const Launch& launch);

/// Calls `work`, of a store, which waits for its server without limit when that is stopped or
/// cut off. Throws Error(kHang) with `what` when it takes longer than `patience`.
void within(std::chrono::milliseconds patience, const std::string& what,
            const std::function<void()>& work);

}  // namespace trellis::runtime
