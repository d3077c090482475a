#pragma once

#include <string_view>

/// page/sweep.js, put into the library when it is built.
namespace trellis::analysis {

extern const std::string_view kSweepScript;

}  // namespace trellis::analysis
