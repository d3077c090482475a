#pragma once

#include <string_view>

/// page/sweep.js, put into the library when it is built.
namespace trellis::cli::layouts {

extern const std::string_view kSweepScript;

}  // namespace trellis::cli::layouts
