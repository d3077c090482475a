#pragma once

#include <filesystem>
#include <string>

namespace trellis::cli {

/// Writes Graphviz text to `file`: as it is to *.dot, drawn by Graphviz's program `dot` to *.svg. The file appears only when it is complete.
/// Throws ConfigError for another extension, a place that cannot be written, or when `dot` is not installed.
void write_graph(const std::filesystem::path& file, const std::string& graph);

}  // namespace trellis::cli
