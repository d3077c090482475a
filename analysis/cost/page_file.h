#pragma once

#include <string_view>

/// page/cost.js, put into the library when it is built.
namespace trellis::analysis {

extern const std::string_view kCostScript;

}  // namespace trellis::analysis
