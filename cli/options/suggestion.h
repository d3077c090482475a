#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace trellis::cli {

/// For a command line that was not understood: "Did you mean `simulate`?" about the first word that
/// is near a verb or an option; "" when none is.
[[nodiscard]] std::string suggestion(const CLI::App& app,
                                     const std::vector<std::string>& command_line);

}  // namespace trellis::cli
