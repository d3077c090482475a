#pragma once

#include <optional>
#include <string>

namespace trellis::sim {

/// "--instance trn2.48xlarge or trn2u.48xlarge": those with `logical_cores` or more, of so many
/// physical cores each (none: the instance's default); "" when there is none. For messages: it
/// reads every configuration.
[[nodiscard]] std::string instance_advice(int logical_cores, std::optional<int> logical_core_size);

}  // namespace trellis::sim
