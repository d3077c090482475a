#pragma once

#include <iosfwd>

#include "traces/timeline.h"

namespace trellis::traces {

/// One event a line, sorted, in integers: the form that is compared and diffed.
///
///   slice 2000 +1500 "rank 0"/"Tensor" "mm" cat="compute" bytes=4096
///   slice 2500 open "rank 0"/"Tensor" "mm" (it did not end)
///   instant 3500 "rank 0"/"Tensor" "cut"
///   counter 3500 "rank 0"/"HBM" 1048576 bytes
///   flow 2000 "rank 0"/"Tensor" "mm" -> 3500 "rank 1"/"Tensor" "add"
///
/// Times are picoseconds. The order does not depend on the order in which events were added, equal
/// events aside.
void write_text(const Timeline& timeline, std::ostream& out);

}  // namespace trellis::traces
