#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "device/driver/timing/step_timing.h"

namespace trellis::device {

/// One step as a timeline: a process per rank with a track per engine, DMA queue group and
/// communication axis and one of the host (launches, copies of data); HBM counters; flow arrows
/// between the participants of a communication; a process of the links with the rate of each of the
/// busiest. format: "perfetto" or "text"; "kineto" and "chakra" are
/// folders (trace_folders.h).
void write_step_trace(const std::filesystem::path& path, const std::string& format,
                      const StepTiming& step, const std::vector<const StepStream*>& streams,
                      const std::vector<const std::vector<Graph>*>& graphs);

}  // namespace trellis::device
