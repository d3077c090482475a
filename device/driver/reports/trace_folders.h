#pragma once

#include <filesystem>
#include <vector>

#include "device/driver/timing/step_timing.h"

namespace trellis::device {

/// One step as a folder of PyTorch's profiler (Kineto): `rank_N.json` for each simulated rank,
/// which HolisticTraceAnalysis, TensorBoard's plugin and ui.perfetto.dev read. The device's work is
/// on stream 7, one kernel after the other as each moves the end of the work forward;
/// communications are NCCL kernels on a stream for each axis, from when all participants are there
/// to the end. Times are microseconds with six digits: exact. Throws ConfigError when the place
/// cannot be written.
void write_kineto_trace(const std::filesystem::path& folder, const StepTiming& step,
                        const std::vector<const StepStream*>& streams,
                        const std::vector<const std::vector<Graph>*>& graphs);

/// One step as execution traces of MLCommons Chakra (schema/protobuf/et_def.proto): `step.N.et` for
/// every rank of the world, a varint-delimited GlobalMetadata and Nodes, as ASTRA-sim's feeder
/// reads them; and `comm_groups.json`, its communicator groups. What lies between two
/// communications is one node of computation with its simulated duration in microseconds;
/// communications have the bytes of their input and wait for what was started before them. Throws
/// ConfigError above kMostChakraRanks.
void write_chakra_trace(const std::filesystem::path& folder, const StepTiming& step);

inline constexpr int kMostChakraRanks = 4096;

}  // namespace trellis::device
