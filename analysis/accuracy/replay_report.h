#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/accuracy/replay.h"
#include "traces/timeline.h"

namespace trellis::analysis {

/// Formats the text of `trellis isa replay`: span, error of each instruction's start by engine and
/// of each transfer's data by queue, what explains most of what is left, constants, what is not
/// expressed.
[[nodiscard]] std::string replay_text(const Replay& replay);
/// Schema trellis.replay/1.
[[nodiscard]] nlohmann::json replay_json(const Replay& replay);
/// The device's trace above the simulated one, with the array's clock.
[[nodiscard]] traces::Timeline replay_timeline(const Replay& replay);

/// Formats the text of `trellis accuracy instructions`: several profiles, worst span first.
[[nodiscard]] std::string replays_text(const std::vector<Replay>& replays);
/// Schema trellis.accuracy/1, subject "instructions".
[[nodiscard]] nlohmann::json replays_json(const std::vector<Replay>& replays);

}  // namespace trellis::analysis
