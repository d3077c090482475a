#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trellis::cli {

/// A fault of the machine as RunRequest::slow has it: "slow:core=3@1.5" is "core:3=1.5",
/// "slow:link=0-1@4" is "link:0-1=4", "down:link=0-1" is "link:0-1=down"; without @FACTOR what it
/// does takes twice as long. None: a fault of another kind. Throws ConfigError for other forms.
[[nodiscard]] std::optional<std::string> slow_part_of_fault(const std::string& fault);

/// Moves the machine's faults to `slow`.
void split_faults(std::vector<std::string>& faults, std::vector<std::string>& slow);

}  // namespace trellis::cli
