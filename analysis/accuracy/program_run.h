#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sim/sim.h"
#include "traces/timeline.h"

namespace trellis::analysis {

/// A program's text, timed on the machine of a replay.
struct ProgramRun {
  std::string name, instance;
  sim::isa::Program program;
  std::vector<sim::SegmentTiming> segments;  ///< one after the other
  std::size_t constants = 0;                 ///< numbers that were read off instruction traces
};

/// Throws ConfigError "FILE: line N: …" and for each broken rule of the core, and Error (kHang)
/// when the program never ends.
[[nodiscard]] ProgramRun run_program(const std::string& text, const std::string& file,
                                     const std::string& instance,
                                     const std::vector<std::string>& overrides);
[[nodiscard]] std::string program_text(const ProgramRun& run);
/// Schema trellis.replay/1, without a device.
[[nodiscard]] nlohmann::json program_json(const ProgramRun& run);
[[nodiscard]] traces::Timeline program_timeline(const ProgramRun& run);

}  // namespace trellis::analysis
