#include <algorithm>
#include <vector>

#include <libkineto.h>
#include <output_base.h>
#include <time_since_epoch.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include "device/aten/state/rank_state.h"
#include "device/driver/timing/rank_clock.h"

/// torch.profiler's view of the device: one slice per device operation, on the track neuron:<i>, in
/// simulated time. The simulated clock is laid at the beginning of the profile; a device that is
/// slower than its emulation ends later than the host's tracks.
namespace trellis::device {
namespace {

using libkineto::ActivityType;

/// The operations of LibTorch's profiler that this thread is inside of, innermost last.
thread_local std::vector<std::uint64_t> open_operations;

void tell_recorders() {
  for (RankState* const rank : owned_ranks())
    rank->recorder().correlate(open_operations.empty() ? 0 : open_operations.back());
}

ActivityType activity_type(DeviceSlice::Kind kind) {
  return kind == DeviceSlice::Kind::kHostCopy ? ActivityType::GPU_MEMCPY
                                              : ActivityType::CONCURRENT_KERNEL;
}

/// One profile of the ranks that the profiling thread owns when it starts.
class NeuronSession final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    status_ = libkineto::TraceStatus::RECORDING;
    begin_ns_ = libkineto::timeSinceEpoch(std::chrono::system_clock::now());
    for (RankState* const rank : owned_ranks()) {
      if (!rank->owned_by_this_thread() || !rank->recorder().recording()) continue;
      rank->recorder().cut("profiler starts");
      rank->recorder().clock().start_slices();
      tracks_.push_back({rank, {}});
    }
  }

  void stop() override {
    status_ = libkineto::TraceStatus::PROCESSING;
    for (Track& track : tracks_) {
      if (track.rank->owned_by_this_thread()) {
        track.rank->recorder().cut("profiler stops");
        track.slices = track.rank->recorder().clock().stop_slices();
      } else {
        errors_.push_back(
            c10::str("neuron: the profile of ", track.rank->device(),
                     " was stopped by another thread than its own: its slices are lost"));
      }
    }
  }

  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](std::int32_t) { return nullptr; }, 0, 0);
  }

  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    std::int64_t, std::int64_t) override {
    Picoseconds end{};
    for (const Track& track : tracks_)
      end = std::max(end, track.slices.empty() ? Picoseconds() : track.slices.back().end);
    trace_.span = libkineto::TraceSpan(begin_ns_, begin_ns_ + nanoseconds(end), "neuron");
    for (const Track& track : tracks_) {
      if (track.slices.empty()) continue;
      announce(track, logger);
      for (const DeviceSlice& slice : track.slices)
        log_slice(track.rank->rank(), slice, logger, linked);
    }
    trace_.gpuOpCount = static_cast<int>(trace_.activities.size());
  }

  // Each track has a separate device: processTrace() notifies the logger.
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::make_unique<libkineto::CpuTraceBuffer>(std::move(trace_));
  }

  void pushCorrelationId(std::uint64_t id) override {
    open_operations.push_back(id);
    tell_recorders();
  }
  void popCorrelationId() override {
    if (!open_operations.empty()) open_operations.pop_back();
    tell_recorders();
  }

 private:
  /// Borders are rounded, not durations: neighbours stay neighbours and the sum stays the sum.
  static std::int64_t nanoseconds(Picoseconds t) { return t.value / 1000; }

  struct Track {
    RankState* rank;
    std::vector<DeviceSlice> slices;
  };

  void announce(const Track& track, libkineto::ActivityLogger& logger) const {
    const int rank = track.rank->rank();
    const std::string name = c10::str("neuron:", rank);
    logger.handleDeviceInfo(
        {rank, libkineto::kExceedMaxPid + rank, name, name + " (simulated time)"}, begin_ns_);
    std::array<bool, RankClock::kStreams> used{};
    for (const DeviceSlice& slice : track.slices)
      used[static_cast<std::size_t>(slice.stream)] = true;
    for (int s = 0; s < RankClock::kStreams; ++s) {
      if (used[static_cast<std::size_t>(s)])
        logger.handleResourceInfo({s, s, rank, c10::str("stream ", s)}, begin_ns_);
    }
  }

  void log_slice(int rank, const DeviceSlice& slice, libkineto::ActivityLogger& logger,
                 const libkineto::getLinkedActivityCallback& linked) {
    trace_.emplace_activity(trace_.span, activity_type(slice.kind), slice.name);
    libkineto::GenericTraceActivity& activity = *trace_.activities.back();
    activity.startTime = begin_ns_ + nanoseconds(slice.start);
    activity.endTime = begin_ns_ + nanoseconds(slice.end);
    activity.id = static_cast<std::int32_t>(slice.correlation);
    activity.device = rank;
    activity.resource = slice.stream;
    activity.flow.id = static_cast<std::uint32_t>(slice.correlation);
    activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    activity.flow.start = 0;
    if (slice.correlation != 0) activity.linked = linked(activity.id);
    activity.addMetadata("stream", slice.stream);
    activity.addMetadata("correlation", slice.correlation);
    activity.addMetadata("simulated_ps", (slice.end - slice.start).value);
    if (slice.bytes > 0) activity.addMetadata("bytes", slice.bytes);
    if (!slice.shapes.empty()) activity.addMetadataQuoted("shapes", slice.shapes);
    activity.log(logger);
  }

  std::vector<Track> tracks_;
  std::int64_t begin_ns_ = 0;
  std::vector<std::string> errors_;
  libkineto::CpuTraceBuffer trace_;
};

class NeuronProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string kName = "neuron";
    return kName;
  }
  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> kTypes{ActivityType::GPU_MEMCPY,
                                               ActivityType::CONCURRENT_KERNEL};
    return kTypes;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& types, const libkineto::Config&) override {
    if (!types.contains(ActivityType::CONCURRENT_KERNEL))
      return nullptr;  // the program profiles the host only
    return std::make_unique<NeuronSession>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      std::int64_t, std::int64_t, const std::set<ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }
};

REGISTER_PRIVATEUSE1_PROFILER(NeuronProfiler);

}  // namespace
}  // namespace trellis::device
