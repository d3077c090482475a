#pragma once

#include <cstddef>
#include <vector>

#include "runtime/calls/source_frame.h"

namespace trellis::runtime {

/// The calling thread's stack in Python's code, innermost first; empty in a process without Python.
/// It ends `most` frames after the first one that is not `skipped`: each costs a microsecond. Takes
/// Python's lock. LibTorch's own way to name such frames (torch::symbolize) imports all of
/// torch._inductor first.
[[nodiscard]] std::vector<SourceFrame> python_stack(std::size_t most,
                                                    bool (*skipped)(const SourceFrame&));

}  // namespace trellis::runtime
