#pragma once

#include <nlohmann/json_fwd.hpp>

namespace trellis::trainer {

/// trellis.memory_timeline/1 of the fullest of the ranks that ran (`memory`: trellis.memory/1),
/// thinned for a picture: of each of at most 1,000 stretches of operations the event at which most
/// was allocated, with what was allocated and reserved, and the phase. Null when the device keeps
/// no timeline.
[[nodiscard]] nlohmann::json memory_timeline_of_fullest(const nlohmann::json& memory);

}  // namespace trellis::trainer
