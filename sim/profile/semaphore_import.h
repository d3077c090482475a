#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/isa/program.h"
#include "sim/profile/profile.h"

namespace trellis::sim {

/// Semaphores of a profile count up, and any engine may wait until one has reached a value. Ours
/// have one waiter, which takes the value away:
///
///   S[5]++ … S[5]++            →  post 0, 1 and post 1, 1, for each of the two waiters
///   Vector: S[5]>=1, S[5]>=3   →  wait 0, 1 and wait 0, 2
///   Scalar: S[5]>=2            →  wait 1, 2
class SemaphoreImport {
 public:
  void wait(const ProfileInstruction& instruction, std::uint32_t id, std::int64_t value);
  void post(const ProfileInstruction& instruction, std::uint32_t id, std::int64_t value);
  /// The instruction is complete; the next one of its engine follows.
  void next(const ProfileInstruction& instruction);

  using Place = std::function<std::string(isa::Engine, std::size_t index)>;
  /// Gives the instructions of the segment their waits and updates. Returns what can never be
  /// satisfied, one a line. Throws ConfigError when the core has too few semaphores.
  [[nodiscard]] std::string bind(isa::Segment& segment, int semaphores, const Place& place) const;

 private:
  struct Use {
    isa::Engine engine;
    std::size_t index;  ///< in its queue
    std::uint32_t id;
    std::int64_t value;
  };

  std::array<std::size_t, isa::kNumEngines> counts_{};
  std::vector<Use> waits_, posts_;
};

}  // namespace trellis::sim
