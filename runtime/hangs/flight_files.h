#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/calls/flight_dump.h"

namespace trellis::runtime {

/// A rank's dump as a pickle in the format 2.10 of PyTorch's flight recorder
/// (torch/csrc/distributed/c10d/FlightRecorder.hpp), which
/// `python -m torch.distributed.flight_recorder.fr_trace` reads. Its analyzer knows a fixed list of
/// backends, ours not among them: operations are named as Gloo's. A message is an entry of a group
/// of its two ranks, because the analyzer expects all members of a group in each entry. Record ids
/// count from the step on, so that ranks of unequal work are aligned by step.
[[nodiscard]] std::string flight_pickle(const FlightDump& dump);

/// Writes PREFIX + rank of each ("…/flight_recorder/rank_" + "3") and returns what a user is to
/// read about it: where they are and how to read them, or why there are none.
[[nodiscard]] std::string write_flight_files(const std::filesystem::path& prefix,
                                             const std::vector<FlightDump>& dumps);

}  // namespace trellis::runtime
