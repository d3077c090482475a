#include "device/driver/timing/rank_clock.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "device/compiler/graph/graph_text.h"
#include "device/driver/timing/kernel_advance.h"
#include "device/driver/timing/program_timer.h"
#include "sim/config/host_copy.h"

namespace trellis::device {

// ── the log ──

void RankClock::append(Entry entry) {
  chunks_.back().entries.push_back(entry);
  if (++entries_ >= kMostEntries) shorten();
}

/// An operation must not throw for an error in the log of earlier ones: the next reading does.
void RankClock::shorten() {
  const bool can_be_asked_for = was_read_ || slicing_ || !marks_.empty();
  if (timer_ != nullptr && can_be_asked_for) {
    try {
      read();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  forget_log();
}

void RankClock::forget_log() {
  chunks_.assign(1, {});
  entries_ = 0;
  marks_.clear();
  profiled_.clear();
  runs_.clear();
  run_ids_.clear();
  requests_.clear();
  request_ids_.clear();
}

void RankClock::forget_graphs() {
  shorten();
  programs_.clear();
}

std::uint32_t RankClock::request(const CommRequest& request) {
  const auto [it, fresh] =
      request_ids_.try_emplace({request.kind, request.elements, request.dtype, request.ranks},
                               static_cast<std::uint32_t>(requests_.size()));
  if (fresh) requests_.push_back(request);
  return it->second;
}

void RankClock::ran(int stream, const GraphInstance& instance,
                    const std::vector<CommRequest>& comms,
                    std::vector<std::uint64_t> correlations) {
  Run run{instance.graph, {}};
  for (const std::uint32_t handle : instance.comms)
    run.comms.push_back({handle, request(comms[handle])});
  const auto [it, fresh] = run_ids_.try_emplace(run, static_cast<std::uint32_t>(runs_.size()));
  if (fresh) runs_.push_back(std::move(run));
  if (!slicing_) return append({Entry::Kind::kRun, static_cast<std::int8_t>(stream), it->second});
  append({Entry::Kind::kProfiledRun, static_cast<std::int8_t>(stream),
          static_cast<std::uint32_t>(profiled_.size())});
  profiled_.push_back({it->second, std::move(correlations)});
}

void RankClock::mark(int stream, std::shared_ptr<TimeMark> mark) {
  append({Entry::Kind::kMark, static_cast<std::int8_t>(stream),
          static_cast<std::uint32_t>(marks_.size())});
  marks_.push_back(std::move(mark));
}

void RankClock::wait(int stream, std::shared_ptr<TimeMark> mark) {
  append({Entry::Kind::kWait, static_cast<std::int8_t>(stream),
          static_cast<std::uint32_t>(marks_.size())});
  marks_.push_back(std::move(mark));
}

void RankClock::host_waits(int stream) {
  const Entry entry{Entry::Kind::kHostWaits, static_cast<std::int8_t>(stream), 0};
  const std::vector<Entry>& open = chunks_.back().entries;
  if (open.empty() || open.back() != entry) append(entry);
}

void RankClock::host_waits(std::shared_ptr<TimeMark> mark) {
  append({Entry::Kind::kHostWaitsForMark, 0, static_cast<std::uint32_t>(marks_.size())});
  marks_.push_back(std::move(mark));
}

void RankClock::end_step() {
  append({Entry::Kind::kEndStep, 0, 0});
  if (entries_ == 0) return;  // the log was shortened
  Chunk& last = chunks_.back();
  Chunk* const before = chunks_.size() > 1 ? &last - 1 : nullptr;
  if (before != nullptr && before->entries == last.entries) {
    ++before->times;
    entries_ -= last.entries.size();
    last.entries.clear();
  } else {
    chunks_.emplace_back();
  }
}

// ── the clock ──

/// Walks the log; what it needs from the timer was asked for before, so nothing fails half-way.
class RankClock::Reader {
 public:
  explicit Reader(RankClock& clock) : c_(clock), system_(clock.timer_->system()) {}

  void prepare() {
    for (const Chunk& chunk : c_.chunks_) {
      for (const Entry& entry : chunk.entries) {
        if (entry.kind == Entry::Kind::kRun) prepare(c_.runs_[entry.what]);
        if (entry.kind == Entry::Kind::kProfiledRun)
          prepare(c_.runs_[c_.profiled_[entry.what].run]);
      }
    }
  }

  void walk() {
    for (const Chunk& chunk : c_.chunks_) {
      for (std::int64_t i = 0; i < chunk.times; ++i) {
        for (const Entry& entry : chunk.entries) step(entry);
      }
    }
  }

 private:
  void prepare(const Run& run) {
    if (c_.programs_.size() <= run.graph) c_.programs_.resize(run.graph + std::size_t{1});
    std::shared_ptr<const TimedProgram>& program = c_.programs_[run.graph];
    if (program == nullptr) program = c_.timer_->share(c_.graphs_[run.graph], Unknown::kEstimate);
    for (const Comm& comm : run.comms)
      static_cast<void>(c_.timer_->communication(c_.requests_[comm.request]));
  }

  void step(const Entry& entry) {
    const auto place = [&]() -> TimeMark& { return *c_.marks_[entry.what]; };
    stream_ = entry.stream;
    switch (entry.kind) {
      case Entry::Kind::kRun: return run(c_.runs_[entry.what], nullptr);
      case Entry::Kind::kProfiledRun:
        return run(c_.runs_[c_.profiled_[entry.what].run], &c_.profiled_[entry.what].correlations);
      case Entry::Kind::kMark: place().time = std::max(now(), c_.host_); return;
      case Entry::Kind::kWait:
        now() = std::max(now(), place().time.value_or(Picoseconds()));
        return;
      case Entry::Kind::kHostWaits:
        c_.host_ = std::max(c_.host_, stream_ < 0 ? c_.now() : now());
        return;
      case Entry::Kind::kHostWaitsForMark:
        c_.host_ = std::max(c_.host_, place().time.value_or(Picoseconds()));
        return;
      case Entry::Kind::kEndStep: return end_step();
    }
  }

  void end_step() {
    c_.comm_ends_.clear();
    const Picoseconds overhead = system_.software.step_overhead;
    if (overhead.value > 0) c_.host_ = std::max(c_.host_, c_.now()) + overhead;
  }

  void run(const Run& run, const std::vector<std::uint64_t>* correlations) {
    const TimedProgram& program = *c_.programs_[run.graph];
    correlations_ = correlations;
    graph_ = &c_.graphs_[run.graph];
    // The host runs ahead of the device: only a program that finds the queue empty waits for its
    // launch.
    const bool dry = c_.host_ >= now();
    if (dry) now() = c_.host_;
    for (const HostCopy& copy : program.host_copies) {
      if (copy.to_device) copy_data(copy);
    }
    advance(DeviceSlice::Kind::kLaunch, "launch",
            system_.launch.program_start + (dry ? system_.launch.program_launch : Picoseconds()),
            kNoNode, 0);
    for (const TimedProgram::Step& step : program.steps) {
      if (step.piece != nullptr) {
        piece(*step.piece, step.node);
      } else {
        communicate(run.comms.at(step.comm.slot), step.comm);
      }
    }
    for (const HostCopy& copy : program.host_copies) {
      if (!copy.to_device) copy_data(copy);
    }
  }

  void copy_data(const HostCopy& copy) {
    advance(DeviceSlice::Kind::kHostCopy, copy.to_device ? "copy to device" : "copy to host",
            sim::host_copy_time(Bytes(copy.bytes), system_.chip), copy.node, copy.bytes);
  }

  void communicate(const Comm& comm, const sim::isa::CommPoint& point) {
    const CommRequest& request = c_.requests_[comm.request];
    if (point.action == sim::isa::CommAction::kStart) {
      Picoseconds& free =
          c_.group_free_[{request.kind == sim::CollectiveKind::kSendRecv, request.ranks}];
      free = std::max(free, now()) + c_.timer_->communication(request);
      c_.comm_ends_[comm.handle] = free;
      return;
    }
    const auto end = c_.comm_ends_.find(comm.handle);
    if (end == c_.comm_ends_.end() || end->second <= now()) return;
    advance(DeviceSlice::Kind::kCommunication, sim::name(request.kind), end->second - now(),
            start_of(point.slot), request.elements * sim::isa::size_bytes(request.dtype));
  }

  [[nodiscard]] std::uint32_t start_of(std::uint32_t comm) const {
    const auto starts = [comm](const Node& node) {
      return node.kind != Node::Kind::kOp && node.comm == comm;
    };
    return static_cast<std::uint32_t>(
        std::find_if(graph_->nodes.begin(), graph_->nodes.end(), starts) - graph_->nodes.begin());
  }

  void piece(const TimedPiece& piece, std::uint32_t first_node) {
    const Picoseconds begin = now();
    if (correlations_ != nullptr) slice_kernels(piece, first_node, begin);
    now() = begin + piece.segment().duration;
  }

  /// The time after the last kernel's end counts as its own, so that slices add up to the segment.
  void slice_kernels(const TimedPiece& piece, std::uint32_t first_node, Picoseconds begin) {
    const std::vector<KernelAdvance> advances = kernel_advances(piece.segment());
    for (std::size_t i = 0; i < advances.size(); ++i) {
      const auto& [kernel, from, to, bound_by_memory] = advances[i];
      const Picoseconds end = i + 1 == advances.size() ? piece.segment().duration : to;
      const std::uint32_t node = first_node + piece.kernels[kernel].node;
      DeviceSlice slice{DeviceSlice::Kind::kOperation,
                        piece.kernels[kernel].name,
                        shapes_text(*graph_, graph_->nodes[node].inputs),
                        stream_,
                        correlation(node),
                        begin + from - c_.slices_from_,
                        begin + end - c_.slices_from_,
                        0};
      c_.slices_.push_back(std::move(slice));
    }
  }

  [[nodiscard]] std::uint64_t correlation(std::uint32_t node) const {
    return node < correlations_->size() ? (*correlations_)[node] : 0;
  }

  void advance(DeviceSlice::Kind kind, std::string_view name, Picoseconds duration,
               std::uint32_t node, std::int64_t bytes) {
    if (correlations_ != nullptr) {
      const Picoseconds start = now() - c_.slices_from_;
      c_.slices_.push_back({kind, std::string(name), "", stream_, correlation(node), start,
                            start + duration, bytes});
    }
    now() += duration;
  }

  static constexpr std::uint32_t kNoNode =
      0xffffffffu;  ///< no operation's own time: the launch of a program

  Picoseconds& now() { return c_.streams_[static_cast<std::size_t>(stream_)]; }

  RankClock& c_;
  const sim::SystemConfig& system_;
  int stream_ = 0;
  const Graph* graph_ = nullptr;
  const std::vector<std::uint64_t>* correlations_ = nullptr;  ///< null: no slices are wanted
};

const sim::SystemConfig& RankClock::system() const {
  if (timer_ == nullptr)
    throw Error(
        ExitCode::kInternal,
        "simulated time: this recorder belongs to no session, so there is no machine to time with");
  return timer_->system();
}

void RankClock::read() {
  static_cast<void>(system());
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  was_read_ = true;
  Reader reader(*this);
  reader.prepare();
  reader.walk();
  forget_log();
}

Picoseconds RankClock::now() const { return *std::max_element(streams_.begin(), streams_.end()); }

// ── the profiler ──

void RankClock::start_slices() {
  read();
  slicing_ = true;
  slices_.clear();
  slices_from_ = now();
}

std::vector<DeviceSlice> RankClock::stop_slices() {
  read();
  slicing_ = false;
  return std::exchange(slices_, {});
}

}  // namespace trellis::device
