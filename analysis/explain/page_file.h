#pragma once

#include <string_view>

/// page/explain.js, put into the library when it is built.
namespace trellis::analysis {

extern const std::string_view kExplainScript;

}  // namespace trellis::analysis
