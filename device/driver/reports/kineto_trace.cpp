#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files/atomic_file.h"
#include "device/driver/reports/trace_folders.h"
#include "device/driver/timing/kernel_advance.h"

namespace trellis::device {

namespace {

using sim::ScheduleItem;

/// With more kernels than this a work item is one event.
constexpr std::size_t kMostKernels = 1'000'000;
constexpr int kComputeStream = 7;  ///< as CUDA's default stream is called
constexpr int kFirstCommStream = 20;

std::string microseconds(Picoseconds time) {
  return fmt::format("{}.{:06}", time.value / 1'000'000, time.value % 1'000'000);
}

/// The names by which analysers recognise NCCL's kernels.
std::string comm_name(sim::CollectiveKind kind) {
  switch (kind) {
    case sim::CollectiveKind::kAllReduce: return "AllReduce";
    case sim::CollectiveKind::kAllGather: return "AllGather";
    case sim::CollectiveKind::kReduceScatter: return "ReduceScatter";
    case sim::CollectiveKind::kBroadcast: return "Broadcast";
    case sim::CollectiveKind::kBarrier: return "Barrier";
    case sim::CollectiveKind::kAllToAll:
    case sim::CollectiveKind::kSendRecv:
    case sim::CollectiveKind::kPermute: return "SendRecv";
  }
  return "";
}

class RankFile {
 public:
  RankFile(const std::filesystem::path& path, int rank, int world, const std::string& text)
      : file_(path), rank_(rank) {
    file_.stream() << fmt::format(
        "{{\"schemaVersion\": 1, \"displayTimeUnit\": \"ms\",\n\"distributedInfo\": {{\"backend\": "
        "\"nccl\", \"rank\": {}, \"world_size\": {}}},\n\"deviceProperties\": [{{\"id\": {}, "
        "\"name\": \"neuron\"}}],\n\"traceEvents\": [\n",
        rank, world, rank);
    name_row("process_name", rank, 0, "neuron " + text);
    name_row("thread_name", rank, kComputeStream, "stream 7: device");
  }

  void name_row(const char* what, int pid, int tid, const std::string& name) {
    row(
        fmt::format("{{\"ph\": \"M\", \"name\": \"{}\", \"pid\": {}, \"tid\": {}, \"ts\": 0, "
                    "\"args\": {{\"name\": {}}}}}",
                    what, pid, tid, quoted(name)));
  }

  /// `more`: further members of args, each with a comma in front.
  void kernel(const std::string& name, int stream, Picoseconds start, Picoseconds end,
              const std::string& more) {
    row(fmt::format(
        "{{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": {}, \"pid\": {}, \"tid\": {}, \"ts\": {}, "
        "\"dur\": {}, \"args\": {{\"device\": {}, \"stream\": {}, \"correlation\": {}{}}}}}",
        quoted(name), rank_, stream, microseconds(start), microseconds(end - start), rank_, stream,
        correlation_, more));
    ++correlation_;
  }

  /// Writes work of the host, on a thread of a process beyond the devices.
  void host(const std::string& name, const char* category, Picoseconds start, Picoseconds end) {
    row(
        fmt::format("{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": {}, \"pid\": {}, \"tid\": 1, "
                    "\"ts\": {}, \"dur\": {}, \"args\": {{\"correlation\": {}}}}}",
                    category, quoted(name), kHostProcess, microseconds(start),
                    microseconds(end - start), correlation_));
  }

  void finish() {
    file_.stream() << "\n]}\n";
    file_.commit(AtomicFile::Durability::kProcess);
  }

 private:
  static constexpr int kHostProcess = 1'000'000;
  static std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }
  void row(const std::string& text) {
    if (!first_) file_.stream() << ",\n";
    first_ = false;
    file_.stream() << text;
  }

  AtomicFile file_;
  int rank_;
  std::int64_t correlation_ = 1;
  bool first_ = true;
};

class RankWriter {
 public:
  RankWriter(const StepTiming& step, std::size_t rank, const StepStream& stream,
             const std::vector<Graph>& graphs, bool kernels)
      : step_(step), rank_(rank), stream_(stream), graphs_(graphs), kernels_(kernels) {}

  void write(RankFile& file) {
    const auto& items = step_.job.ranks[rank_];
    for (std::size_t i = 0; i < items.size(); ++i) {
      const sim::ItemTiming& time = step_.timing.ranks[rank_][i];
      const ItemOrigin& origin = step_.origins[rank_][i];
      switch (items[i].kind) {
        case ScheduleItem::Kind::kSegment: segment(origin, time, file); break;
        case ScheduleItem::Kind::kLaunch:
          file.host("launch " + step_.program(origin).name, "cuda_runtime", time.start, time.end);
          break;
        case ScheduleItem::Kind::kHostCopy:
          file.host("copy between host and device", "cpu_op", time.start, time.end);
          break;
        case ScheduleItem::Kind::kCommStart: communication(items[i], file); break;
        case ScheduleItem::Kind::kCommWait: break;
      }
    }
  }

 private:
  /// Writes a segment's time, divided among its kernels as in the report: none overlaps another.
  /// The time after the last kernel is idle.
  void segment(const ItemOrigin& origin, const sim::ItemTiming& time, RankFile& file) {
    const TimedProgram::Step& step = step_.program(origin).steps[origin.step];
    const sim::SegmentTiming& alone = step.piece->segment();
    const Graph& graph = graphs_[stream_.instances[origin.instance].graph];
    const std::string phase = graph.name;
    if (!kernels_ || alone.duration.value == 0) {
      file.kernel(phase, kComputeStream, time.start, time.end, "");
      return;
    }
    const Picoseconds duration = time.end - time.start;
    const auto at = [&](Picoseconds t) {
      return time.start +
             Picoseconds(static_cast<std::int64_t>(static_cast<__int128>(t.value) * duration.value /
                                                   alone.duration.value));
    };
    Picoseconds done = time.start;
    for (const KernelAdvance& advance : kernel_advances(alone)) {
      const sim::isa::Kernel& kernel = step.piece->kernels[advance.kernel];
      const Node& node = graph.nodes[step.node + kernel.node];
      const Picoseconds end = std::min(at(advance.to), time.end);
      if (end <= done) continue;
      file.kernel(kernel.name, kComputeStream, done, end,
                  ", \"op\": " + nlohmann::json(node.op).dump() +
                      ", \"graph\": " + nlohmann::json(phase).dump() +
                      ", \"layer\": " + nlohmann::json(node.scope.layer).dump());
      done = end;
    }
  }

  void communication(const ScheduleItem& item, RankFile& file) {
    const sim::ClusterComm& comm = step_.job.comms[item.comm];
    const sim::CommTiming& timing = step_.timing.comms[item.comm];
    const sim::CommGroup& group = step_.job.groups[comm.group];
    const auto [axis, fresh] = streams_of_axes_.try_emplace(
        group.axis, kFirstCommStream + static_cast<int>(streams_of_axes_.size()));
    if (fresh)
      file.name_row("thread_name", step_.world_rank(rank_), axis->second,
                    fmt::format("stream {}: communication {}", axis->second, group.axis));
    const std::string name = comm_name(comm.kind);
    file.kernel("ncclDevKernel_" + name, axis->second, timing.ready, timing.end,
                fmt::format(", \"Collective name\": \"{}\", \"In msg nelems\": {}, \"Group size\": "
                            "{}, \"Process Group Name\": \"{}\", \"bytes\": {}",
                            sim::name(comm.kind), comm.elements, group.ranks.size(), group.axis,
                            comm.elements * comm.element_bytes));
  }

  const StepTiming& step_;
  std::size_t rank_;
  const StepStream& stream_;
  const std::vector<Graph>& graphs_;
  bool kernels_;
  std::map<std::string, int> streams_of_axes_;
};

std::size_t count_kernels(const StepTiming& step) {
  std::size_t count = 0;
  for (const auto& items : step.job.ranks) {
    for (const ScheduleItem& item : items) {
      if (item.kind == ScheduleItem::Kind::kSegment)
        count += step.job.programs[item.program]->segments[item.segment].slices.size();
    }
  }
  return count;
}

}  // namespace

void write_kineto_trace(const std::filesystem::path& folder, const StepTiming& step,
                        const std::vector<const StepStream*>& streams,
                        const std::vector<const std::vector<Graph>*>& graphs) {
  const bool kernels = count_kernels(step) <= kMostKernels;
  const int world = static_cast<int>(step.job.cores.size());
  for (std::size_t rank = 0; rank < step.job.ranks.size(); ++rank) {
    const int name = step.world_rank(rank);
    RankFile file(folder / fmt::format("rank_{}.json", name), name, world, step.rank_text(name));
    RankWriter(step, rank, *streams[rank], *graphs[rank], kernels).write(file);
    file.finish();
  }
}

}  // namespace trellis::device
