#pragma once

#include <cstdint>
#include <string>

namespace trellis::runtime {

/// A line of the program.
struct SourceFrame {
  std::string function, file;
  std::int64_t line = 0;
};

}  // namespace trellis::runtime
