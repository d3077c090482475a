#pragma once

#include <string>
#include <vector>

namespace trellis::cli {

/// Runs this program with other arguments and returns what it printed on stdout; its progress goes to stderr. Throws Error with the child's exit code
/// when that is not 0: the child has said why.
[[nodiscard]] std::string run_self(const std::vector<std::string>& arguments);

}  // namespace trellis::cli
