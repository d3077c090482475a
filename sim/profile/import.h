#pragma once

#include <array>
#include <string>
#include <vector>

#include "sim/isa/program.h"
#include "sim/profile/profile.h"

namespace trellis::sim {

/// A transfer as the profile shows it, in nanoseconds of the profile.
struct TracedTransfer {
  isa::Engine engine = isa::Engine::kSync;
  std::uint32_t index = 0;           ///< of the dma instruction in the engine's queue
  std::string queue;                 ///< "qSyncDynamicHW"
  std::int64_t trigger = 0;          ///< the instruction's start
  std::int64_t first = 0, last = 0;  ///< begin of the first data, end of the last; last 0: unknown
};

/// A profile's program in our instruction set. Semaphores count down here and have one waiter,
/// there they count up: each pair of a semaphore and an engine that waits on it becomes one.
struct ImportedProgram {
  isa::Program program;
  std::array<std::vector<std::size_t>, isa::kNumEngines> places;  ///< index in
                                                                  ///< Profile::instructions
  std::vector<TracedTransfer> transfers;
  std::vector<std::string> notes;  ///< what is not expressed, each with its first instruction
};

/// Throws ConfigError with every instruction that cannot be read or breaks a rule of the core, and
/// Error (kHang) when a wait can never be satisfied.
[[nodiscard]] ImportedProgram import_program(const Profile& profile, const isa::Limits& limits);

/// "FILE: instruction[17] (Scalar pc 70 COPY)"
[[nodiscard]] std::string place_text(const Profile& profile, std::size_t instruction);

}  // namespace trellis::sim
