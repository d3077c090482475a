#pragma once

#include <filesystem>
#include <string>

namespace trellis::cli {

/// The content of `file` for Graphviz text: as it is for *.dot, drawn by Graphviz's program `dot`
/// for *.svg. Throws ConfigError for another extension or when `dot` is not installed.
[[nodiscard]] std::string graph_content(const std::filesystem::path& file,
                                        const std::string& graph);

}  // namespace trellis::cli
