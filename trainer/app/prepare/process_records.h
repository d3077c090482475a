#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "runtime/groups/device_plugin.h"
#include "runtime/links/process_link.h"
#include "runtime/ranks/world.h"

namespace trellis::trainer {

/// Brings what the device recorded in each process of a job to the first process, whose device then
/// simulates and reports all ranks. For devices that give and take steps (device/plugin.h).
class ProcessRecords {
 public:
  /// `ranks`: those of this process. All outlive this.
  ProcessRecords(runtime::ProcessLink& link, const runtime::DevicePlugin& plugin,
                 std::vector<int> ranks);

  /// Called by the first rank of each process, when all ranks of the job have ended the step.
  void bring_step(runtime::RankContext& rank, std::int64_t step) const;
  /// Brings the accounts of memory and operators, after the run. Throws Error when a process says
  /// nothing for `patience`.
  void bring_accounts(std::chrono::milliseconds patience) const;

 private:
  using Give = int (*)(const std::int32_t*, std::int32_t, const char**, std::int64_t*);
  [[nodiscard]] std::string given(Give give) const;
  using Take = int (*)(const char*, std::int64_t);
  void take(Take taken_by, const std::string& bytes) const;

  runtime::ProcessLink& link_;
  const runtime::DevicePlugin& plugin_;
  std::vector<int> ranks_;
};

}  // namespace trellis::trainer
