#pragma once

#include <string_view>

namespace trellis::analysis {

/// The Python program that reads shell scripts; a generated source holds it.
extern const std::string_view kReadShell;

}  // namespace trellis::analysis
