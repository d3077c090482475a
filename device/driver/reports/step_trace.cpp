#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "device/driver/reports/step_trace.h"
#include "device/driver/reports/trace_folders.h"
#include "traces/perfetto_writer.h"
#include "traces/text_writer.h"
#include "traces/timeline.h"

namespace trellis::device {

namespace {

using sim::ScheduleItem;
using traces::Arg;

/// Tracks of one rank's process, in the order in which they are shown.
struct RankTracks {
  traces::TrackId programs;
  traces::TrackId host;  ///< launches, and copies between its memory and the device's
  std::array<traces::TrackId, sim::kNumTracks> units;
  std::map<std::string, traces::TrackId> comms;  ///< by axis
  traces::CounterId hbm;
  std::map<std::string, traces::CounterId> counters;  ///< that the program announced
  std::map<std::string, std::int64_t> values;         ///< of these, the last ones
};

std::string unit_name(int track) {
  return track < sim::isa::kNumEngines
             ? std::string(sim::isa::name(static_cast<sim::isa::Engine>(track)))
             : "DMA " + std::string(sim::isa::name(
                            static_cast<sim::isa::DmaQueue>(track - sim::isa::kNumEngines)));
}

constexpr std::size_t kMostLinksShown = 64;
constexpr std::int64_t kPicosecondsPerSecondInt = 1'000'000'000'000;
/// With more slices of kernels than this a trace shows those of each graph's first run alone.
constexpr std::size_t kMostKernelSlices = 1'000'000;

/// Ranks that get a process, by their place, each with the number of ranks that did the same at the
/// same times: all that it and its equals represent.
std::vector<std::pair<std::size_t, std::size_t>> shown_ranks(const StepTiming& step) {
  std::vector<std::pair<std::size_t, std::size_t>> shown;
  std::map<ContentHash, std::size_t> first;
  for (std::size_t rank = 0; rank < step.job.ranks.size(); ++rank) {
    ContentHasher h;
    for (std::size_t i = 0; i < step.job.ranks[rank].size(); ++i) {
      const ScheduleItem& item = step.job.ranks[rank][i];
      const sim::ItemTiming& time = step.timing.ranks[rank][i];
      h.value(item.kind);
      h.value(item.program);
      h.value(item.segment);
      h.value(time.start.value);
      h.value(time.end.value);
    }
    const ContentHash key = h.finish();
    const auto [it, fresh] = first.try_emplace(key, shown.size());
    if (fresh) shown.emplace_back(rank, 0);
    shown[it->second].second +=
        static_cast<std::size_t>(step.job.fold.represents(static_cast<int>(rank)));
  }
  return shown;
}

class TraceBuilder {
 public:
  TraceBuilder(const StepTiming& step, const std::vector<const StepStream*>& streams,
               const std::vector<const std::vector<Graph>*>& graphs)
      : step_(step), streams_(streams), graphs_(graphs) {}

  const traces::Timeline& build() {
    comm_slices_.resize(step_.job.comms.size());
    const auto shown = shown_ranks(step_);
    once_ = count_kernel_slices(shown) > kMostKernelSlices;
    for (const auto& [rank, ranks] : shown) {
      add_tracks(rank, ranks);
      add_rank(rank);
    }
    add_links();
    for (const auto& slices : comm_slices_) {
      for (std::size_t i = 1; i < slices.size(); ++i) timeline_.flow(slices[0], slices[i]);
    }
    return timeline_;
  }

 private:
  [[nodiscard]] std::size_t count_kernel_slices(
      const std::vector<std::pair<std::size_t, std::size_t>>& shown) const {
    std::size_t count = 0;
    for (const auto& [rank, ranks] : shown) {
      for (const ScheduleItem& item : step_.job.ranks[rank]) {
        if (item.kind == ScheduleItem::Kind::kSegment)
          count += step_.job.programs[item.program]->segments[item.segment].slices.size();
      }
    }
    return count;
  }

  /// True if the kernels of this run of a graph are shown.
  bool in_detail(std::size_t rank, const ItemOrigin& origin) {
    if (!once_) return true;
    const auto [it, fresh] = first_run_.try_emplace(
        {rank, streams_[rank]->instances[origin.instance].graph}, origin.instance);
    return it->second == origin.instance;
  }

  void add_tracks(std::size_t rank, std::size_t ranks) {
    const int world_rank = step_.world_rank(rank);
    const std::string others = ranks == 1 ? ""
                               : ranks == 2
                                   ? " (and 1 equal rank)"
                                   : " (and " + std::to_string(ranks - 1) + " equal ranks)";
    const traces::ProcessId process =
        timeline_.add_process("rank " + step_.rank_text(world_rank) + others, world_rank);
    tracks_ = {};
    process_ = process;
    tracks_.programs = timeline_.add_track(process, "programs", 0);
    for (int t = 0; t < sim::kNumTracks; ++t) {
      tracks_.units[static_cast<std::size_t>(t)] =
          timeline_.add_track(process, unit_name(t), 1 + t);
    }
    std::map<std::string, int> axes;
    for (const ScheduleItem& item : step_.job.ranks[rank]) {
      if (item.kind == ScheduleItem::Kind::kCommStart)
        axes.emplace(step_.job.groups[step_.job.comms[item.comm].group].axis, 0);
    }
    int order = 1 + sim::kNumTracks;
    tracks_.host = timeline_.add_track(process, "host", order++);
    for (const auto& [axis, unused] : axes)
      tracks_.comms.emplace(axis, timeline_.add_track(process, "communication " + axis, order++));
    tracks_.hbm = timeline_.add_counter(process, "HBM in use", "bytes");
  }

  void add_rank(std::size_t rank) {
    const auto& items = step_.job.ranks[rank];
    std::map<std::string, Picoseconds> free_at;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const sim::ItemTiming& time = step_.timing.ranks[rank][i];
      const ItemOrigin& origin = step_.origins[rank][i];
      if (items[i].kind == ScheduleItem::Kind::kLaunch) add_program(rank, i);
      if (items[i].kind == ScheduleItem::Kind::kSegment) add_counters(rank, i);
      if (items[i].kind == ScheduleItem::Kind::kSegment && in_detail(rank, origin))
        add_segment(rank, origin, time);
      if (items[i].kind == ScheduleItem::Kind::kLaunch)
        timeline_.slice(tracks_.host, "launch", "launch", time.start, time.end - time.start);
      if (items[i].kind == ScheduleItem::Kind::kHostCopy) add_host_copy(items[i], origin, time);
      if (items[i].kind == ScheduleItem::Kind::kCommStart)
        add_comm(items[i], rank, origin, time, free_at);
    }
  }

  void add_host_copy(const ScheduleItem& item, const ItemOrigin& origin,
                     const sim::ItemTiming& time) {
    const bool to_device = step_.program(origin).host_copies[origin.step].to_device;
    const std::array<Arg, 1> args{Arg{"bytes", item.bytes}};
    timeline_.slice(tracks_.host, to_device ? "data to device" : "copy to host",
                    to_device ? "data" : "host", time.start, time.end - time.start,
                    std::span(args.data(), args.size()));
  }

  /// Rates in bins of the run; of many links the busiest, equal ones by name.
  void add_links() {
    std::vector<const sim::LinkUsage*> links;
    for (const sim::LinkUsage& link : step_.timing.links) links.push_back(&link);
    std::stable_sort(links.begin(), links.end(),
                     [](const auto* a, const auto* b) { return a->busy > b->busy; });
    if (links.empty()) return;
    const std::size_t shown = std::min(links.size(), kMostLinksShown);
    const std::string which = shown == links.size()
                                  ? "links"
                                  : "links (the " + std::to_string(shown) + " busiest of " +
                                        std::to_string(links.size()) + ")";
    const traces::ProcessId process =
        timeline_.add_process(which, static_cast<int>(step_.job.cores.size()));
    for (std::size_t i = 0; i < shown; ++i) add_link(process, *links[i]);
  }

  void add_link(traces::ProcessId process, const sim::LinkUsage& link) {
    const traces::CounterId counter = timeline_.add_counter(process, link.name, "bytes/s");
    const std::int64_t width = step_.timing.history_bin.value;
    std::int64_t last = -1;
    for (std::size_t bin = 0; bin <= link.history.size(); ++bin) {
      const std::int64_t bytes = bin < link.history.size() ? link.history[bin] : 0;
      const auto rate = static_cast<std::int64_t>(static_cast<__int128>(bytes) *
                                                  kPicosecondsPerSecondInt / width);
      if (rate != last)
        timeline_.counter(counter, Picoseconds(static_cast<std::int64_t>(bin) * width), rate);
      last = rate;
    }
  }

  /// From the launch to the end of the last item of the same instance.
  void add_program(std::size_t rank, std::size_t launch) {
    const auto& origins = step_.origins[rank];
    std::size_t last = launch;
    while (last + 1 < origins.size() && origins[last + 1].instance == origins[launch].instance)
      ++last;
    const GraphInstance& instance = streams_[rank]->instances[origins[launch].instance];
    const Graph& graph = (*graphs_[rank])[instance.graph];
    const Picoseconds start = step_.timing.ranks[rank][launch].start;
    const Picoseconds end = step_.timing.ranks[rank][last].end;
    std::array<Arg, 2> args{Arg{"cut", std::string_view(graph.cut_reason)}};
    std::size_t n = 1;
    if (instance.microbatch >= 0) args[n++] = {"microbatch", std::int64_t{instance.microbatch}};
    timeline_.slice(tracks_.programs, graph.name, "program", start, end - start,
                    std::span(args.data(), n));
    timeline_.counter(tracks_.hbm, start, instance.memory_before);
    timeline_.counter(tracks_.hbm, end, instance.memory_after);
  }

  /// During a communication a segment is stretched as a whole.
  static Picoseconds stretched(Picoseconds at, const sim::SegmentTiming& segment,
                               const sim::ItemTiming& time) {
    const Picoseconds actual = time.end - time.start;
    if (actual == segment.duration || segment.duration.value == 0) return at;
    return Picoseconds(static_cast<std::int64_t>(static_cast<__int128>(at.value) * actual.value /
                                                 segment.duration.value));
  }

  /// Those of the nodes from this segment's first one to the next segment's.
  void add_counters(std::size_t rank, std::size_t item) {
    const auto& origins = step_.origins[rank];
    const ItemOrigin& origin = origins[item];
    const std::vector<CounterSample>& all = streams_[rank]->instances[origin.instance].counters;
    if (all.empty()) return;
    const std::vector<TimedProgram::Step>& steps = step_.program(origin).steps;
    const TimedProgram::Step& step = steps[origin.step];
    const auto next =
        std::find_if(steps.begin() + static_cast<std::ptrdiff_t>(origin.step) + 1, steps.end(),
                     [](const TimedProgram::Step& other) { return other.piece != nullptr; });
    const bool is_first =
        std::none_of(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(origin.step),
                     [](const TimedProgram::Step& other) { return other.piece != nullptr; });
    for (const CounterSample& sample : all) {
      if ((sample.node < step.node && !is_first) ||
          (next != steps.end() && sample.node >= next->node))
        continue;
      const auto [value, is_new] = tracks_.values.try_emplace(sample.name, sample.value);
      if (!is_new && value->second == sample.value) continue;
      value->second = sample.value;
      traces::CounterId& counter = tracks_.counters[sample.name];
      if (is_new) counter = timeline_.add_counter(process_, sample.name, "tokens");
      timeline_.counter(counter, time_of(sample, step, step_.timing.ranks[rank][item]),
                        sample.value);
    }
  }

  /// The first kernel of its node, or of one after it.
  static Picoseconds time_of(const CounterSample& sample, const TimedProgram::Step& step,
                             const sim::ItemTiming& time) {
    const sim::SegmentTiming& segment = step.piece->segment();
    Picoseconds first = segment.duration;
    for (const sim::KernelSlice& slice : segment.slices) {
      if (step.node + step.piece->kernels[slice.kernel].node >= sample.node)
        first = std::min(first, slice.start);
    }
    return time.start + stretched(first, segment, time);
  }

  void add_segment(std::size_t rank, const ItemOrigin& origin, const sim::ItemTiming& time) {
    const TimedProgram::Step& step = step_.program(origin).steps[origin.step];
    const sim::SegmentTiming& segment = step.piece->segment();
    const GraphInstance& instance = streams_[rank]->instances[origin.instance];
    const Graph& graph = (*graphs_[rank])[instance.graph];
    for (const sim::KernelSlice& slice : segment.slices) {
      const sim::isa::Kernel& kernel = step.piece->kernels[slice.kernel];
      const Node& node = graph.nodes[step.node + kernel.node];
      std::array<Arg, 5> args;
      std::size_t n = 0;
      args[n++] = {"op", std::string_view(node.op)};
      if (!node.scope.layer.empty()) args[n++] = {"layer", std::string_view(node.scope.layer)};
      if (instance.microbatch >= 0) args[n++] = {"microbatch", std::int64_t{instance.microbatch}};
      if (slice.bytes.value > 0) args[n++] = {"bytes", slice.bytes.value};
      if (slice.busy < slice.end - slice.start) args[n++] = {"busy_ps", slice.busy.value};
      timeline_.slice(tracks_.units[slice.track], kernel.name,
                      node.scope.phase.empty() ? "other" : node.scope.phase,
                      time.start + stretched(slice.start, segment, time),
                      stretched(slice.end, segment, time) - stretched(slice.start, segment, time),
                      std::span(args.data(), n));
    }
  }

  void add_comm(const ScheduleItem& item, std::size_t rank, const ItemOrigin& origin,
                const sim::ItemTiming& time, std::map<std::string, Picoseconds>& free_at) {
    const sim::ClusterComm& comm = step_.job.comms[item.comm];
    const sim::CommTiming& timing = step_.timing.comms[item.comm];
    const std::string& axis = step_.job.groups[comm.group].axis;
    const GraphInstance& instance = streams_[rank]->instances[origin.instance];
    // One track shows one communication at a time: a queued one begins where its predecessor ends.
    Picoseconds& free = free_at[axis];
    const Picoseconds start = std::max(time.start, free);
    const Picoseconds end = std::max(start, timing.end);
    free = end;
    std::array<Arg, 4> args{Arg{"op", sim::name(comm.kind)},
                            Arg{"bytes", comm.elements * comm.element_bytes},
                            Arg{"ready_ps", timing.ready.value}};
    std::size_t n = 3;
    if (instance.microbatch >= 0) args[n++] = {"microbatch", std::int64_t{instance.microbatch}};
    comm_slices_[item.comm].push_back(timeline_.slice(tracks_.comms.at(axis), sim::name(comm.kind),
                                                      "communication", start, end - start,
                                                      std::span(args.data(), n)));
  }

  const StepTiming& step_;
  const std::vector<const StepStream*>& streams_;
  const std::vector<const std::vector<Graph>*>& graphs_;
  traces::Timeline timeline_;
  RankTracks tracks_;
  traces::ProcessId process_{};  ///< theirs
  std::vector<std::vector<std::uint64_t>> comm_slices_;
  bool once_ = false;  ///< kernels are shown for the first run of each graph alone
  std::map<std::pair<std::size_t, std::uint32_t>, std::uint32_t>
      first_run_;  ///< (rank, graph) → instance
};

}  // namespace

void write_step_trace(const std::filesystem::path& path, const std::string& format,
                      const StepTiming& step, const std::vector<const StepStream*>& streams,
                      const std::vector<const std::vector<Graph>*>& graphs) {
  if (format == "kineto") return write_kineto_trace(path, step, streams, graphs);
  if (format == "chakra") return write_chakra_trace(path, step);
  TraceBuilder builder(step, streams, graphs);
  const traces::Timeline& timeline = builder.build();
  AtomicFile file(path);
  if (format == "perfetto") {
    traces::write_perfetto(timeline, file.stream());
  } else if (format == "text") {
    traces::write_text(timeline, file.stream());
  } else {
    throw ConfigError("trace format \"" + format + "\": expected perfetto, text, kineto or chakra");
  }
  file.commit();
}

}  // namespace trellis::device
