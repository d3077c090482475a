#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "device/driver/memory/pass_log.h"
#include "device/driver/record/out_of_memory.h"
#include "device/driver/record/rank_recorder_impl.h"
#include "device/driver/timing/rank_clock.h"

namespace trellis::device {

/// Carries a logged period out again, some micro-batches later each time.
class PeriodRepeater {
 public:
  explicit PeriodRepeater(RankRecorder& recorder)
      : recorder_(recorder),
        stream_(recorder.impl()),
        memory_(recorder.memory()),
        log_(stream_.log) {}

  /// False: the last two periods differ, or leave other memory than `kept`.
  bool prepare(std::span<MemoryBlock* const> kept) {
    period_ = log_.last_period(shift_);
    if (period_.first == period_.second) return false;
    for (const PassLog::Pass& pass : log_.passes())
      made_.push_back({pass.kind, pass.microbatch, pass.blocks, pass.comms});
    for (std::uint32_t i = 0; i < made_.size(); ++i)
      place_[key(made_[i].kind, made_[i].microbatch)] = i;
    for (MemoryBlock* block : kept) {
      if (block == nullptr || block->serial < log_.first_serial()) return false;
      kept_.push_back(log_.place(block->serial));
      if (kept_.back().pass < period_.first || kept_.back().pass >= period_.second) return false;
    }
    return leaves_only(kept.size()) && find_leftovers();
  }

  std::vector<MemoryBlock*> run(std::int64_t times) {
    const auto* const log = &log_;
    memory_.record_to(nullptr);
    stream_.logs = false;
    const Scope before = recorder_.scope_;
    const std::size_t executed = made_.size();
    const std::uint64_t first_serial = memory_.next_serial();
    std::vector<MemoryBlock*> copies;
    try {
      for (std::int64_t time = 1; time <= times; ++time) repeat_all(*log, time, copies);
    } catch (...) {
      release_unowned(executed, first_serial);
      throw;
    }
    recorder_.scope_ = before;
    stream_.scope_id = 0;
    move_leftovers(static_cast<std::int32_t>(times) * shift_);
    count_comms(times);
    stream_.first_new_buffer =
        stream_.next_buffer;  // nothing is open: what is recorded next did not make these buffers
    return copies;
  }

 private:
  /// The memory and communications that a pass, executed or repeated, made.
  struct Made {
    std::uint32_t kind = 0;
    std::int32_t microbatch = 0;
    std::vector<MemoryBlock*> blocks;
    std::vector<std::uint32_t> comms;
  };
  struct Leftover {
    MemoryBlock** holder = nullptr;
    std::uint32_t kind = 0;
    std::int32_t microbatch = 0;
    std::uint64_t index = 0;
  };

  static std::uint64_t key(std::uint32_t kind, std::int32_t microbatch) {
    return (std::uint64_t{kind} << 32) | static_cast<std::uint32_t>(microbatch);
  }

  /// nullptr: no such pass.
  Made* find(std::uint32_t kind, std::int32_t microbatch) {
    const auto found = place_.find(key(kind, microbatch));
    return found == place_.end() ? nullptr : &made_[found->second];
  }

  [[nodiscard]] bool leaves_only(std::size_t kept) const {
    std::size_t allocated = 0, freed = 0;
    for (std::size_t i = period_.first; i < period_.second; ++i) {
      for (const PassLog::Event& event : log_.passes()[i].events) {
        allocated += event.what == PassLog::What::kAllocate ? 1 : 0;
        freed += event.what == PassLog::What::kFree ? 1 : 0;
      }
    }
    return allocated == freed + kept;
  }

  /// Finds the things that the period takes from passes before it. The repeated periods would have
  /// taken them from passes that were executed: those things have owners who will go on with their
  /// counterparts.
  bool find_leftovers() {
    for (std::size_t i = period_.first; i < period_.second; ++i) {
      const PassLog::Pass& pass = log_.passes()[i];
      for (const PassLog::Event& event : pass.events) {
        if (event.what == PassLog::What::kFree && !find_blocks(event.ref, pass.microbatch))
          return false;
      }
      for (const PassLog::Run& run : pass.runs) {
        for (const PassLog::Ref& ref : run.comms) find_comms(ref, pass.microbatch);
      }
    }
    return true;
  }

  bool find_blocks(const PassLog::Ref& ref, std::int32_t microbatch) {
    for (std::int32_t next = microbatch + shift_ - ref.lag;; next += shift_) {
      const Made* const made = find(ref.kind, next);
      if (made == nullptr) return true;
      if (ref.index >= made->blocks.size() || made->blocks[ref.index]->holder == nullptr)
        return false;
      blocks_.push_back({made->blocks[ref.index]->holder, ref.kind, next, ref.index});
    }
  }

  void find_comms(const PassLog::Ref& ref, std::int32_t microbatch) {
    for (std::int32_t next = microbatch + shift_ - ref.lag;
         const Made* const made = find(ref.kind, next); next += shift_) {
      if (ref.index < made->comms.size()) comms_.push_back({nullptr, ref.kind, next, ref.index});
    }
  }

  void repeat_all(const PassLog& log, std::int64_t time, std::vector<MemoryBlock*>& copies) {
    const std::size_t first = made_.size();
    for (std::size_t i = period_.first; i < period_.second; ++i) repeat(log.passes()[i], time);
    for (const PassLog::Place& place : kept_)
      copies.push_back(made_[first + place.pass - period_.first].blocks[place.index]);
  }

  /// Frees the memory that repeated passes, those from `first` on, allocated and did not free. A
  /// block that has another owner by now has another serial number.
  void release_unowned(std::size_t first, std::uint64_t serial) {
    for (std::size_t i = first; i < made_.size(); ++i) {
      for (MemoryBlock* block : made_[i].blocks) {
        if (block->serial == serial++ && block->state == MemoryBlock::State::kActive)
          memory_.release(*block);
      }
    }
  }

  void repeat(const PassLog::Pass& pass, std::int64_t time) {
    const std::int32_t microbatch = pass.microbatch + static_cast<std::int32_t>(time) * shift_;
    place_[key(pass.kind, microbatch)] = static_cast<std::uint32_t>(made_.size());
    Made& now = made_.emplace_back(Made{pass.kind, microbatch, {}, {}});
    now.blocks.reserve(pass.blocks.size());
    now.comms.reserve(pass.comms.size());
    for (const PassLog::Event& event : pass.events) {
      memory_.advance(event.ops);
      repeat(event, pass, time, now);
    }
  }

  void repeat(const PassLog::Event& event, const PassLog::Pass& pass, std::int64_t time,
              Made& now) {
    switch (event.what) {
      case PassLog::What::kAllocate: now.blocks.push_back(&allocate(event, now.microbatch)); return;
      case PassLog::What::kFree: release(block(event.ref, now.microbatch)); return;
      case PassLog::What::kRecategorize:
        memory_.recategorize(block(event.ref, now.microbatch), event.category);
        return;
      case PassLog::What::kUseByStream:
        memory_.record_stream(block(event.ref, now.microbatch));
        return;
      case PassLog::What::kGraphBegins: stream_.memory_before = memory_.current(); return;
      case PassLog::What::kGraphRan: run(pass.runs[event.id], now.microbatch); return;
      case PassLog::What::kCommStart: start(event, pass, time, now); return;
      case PassLog::What::kHostWaits: recorder_.host_waits(static_cast<int>(event.id) - 1); return;
      case PassLog::What::kMark:
      case PassLog::What::kOther: return;
    }
  }

  MemoryBlock& allocate(const PassLog::Event& event, std::int32_t microbatch) {
    MemoryBlock* const block =
        memory_.allocate(event.bytes, event.category, event.id, recorder_.new_buffer());
    if (block == nullptr) {
      recorder_.scope_ = recorder_.interned().scope(event.id);
      recorder_.scope_.microbatch = microbatch;
      throw Error(ExitCode::kDoesNotFit,
                  out_of_memory(recorder_, event.bytes, event.category, true));
    }
    return *block;
  }

  /// A tensor of an executed pass has no block until move_leftovers() gives it the next one: where
  /// memory runs out before, it must not release this one again.
  void release(MemoryBlock& block) {
    if (block.holder != nullptr) *std::exchange(block.holder, nullptr) = nullptr;
    memory_.release(block);
  }

  MemoryBlock& block(const PassLog::Ref& ref, std::int32_t microbatch) {
    Made* const made = find(ref.kind, microbatch - ref.lag);
    TRELLIS_CHECK(made != nullptr && ref.index < made->blocks.size(),
                  "a repeated pass names memory of a pass that was not");
    return *made->blocks[ref.index];
  }

  void run(const PassLog::Run& run, std::int32_t microbatch) {
    GraphInstance instance;
    instance.graph = run.graph;
    instance.microbatch = microbatch;
    for (const PassLog::Ref& ref : run.comms) {
      const Made* const made = find(ref.kind, microbatch - ref.lag);
      TRELLIS_CHECK(made != nullptr && ref.index < made->comms.size(),
                    "a repeated pass names a communication of a pass that was not");
      instance.comms.push_back(made->comms[ref.index]);
    }
    instance.memory_before = stream_.memory_before;
    instance.memory_after = memory_.current();
    instance.counters = counters_of(run.graph);
    ++stream_.graph_runs[run.graph];
    recorder_.clock_->ran(run.stream, instance, stream_.step.comms, {});
    stream_.step.instances.push_back(std::move(instance));
  }

  /// As in the run of the graph before: without data nothing distinguishes them.
  [[nodiscard]] std::vector<CounterSample> counters_of(std::uint32_t graph) const {
    const std::vector<GraphInstance>& before = stream_.step.instances;
    const auto last = std::find_if(before.rbegin(), before.rend(),
                                   [&](const GraphInstance& one) { return one.graph == graph; });
    return last == before.rend() ? std::vector<CounterSample>() : last->counters;
  }

  /// The numbers of a group's communications go on from period to period.
  void start(const PassLog::Event& event, const PassLog::Pass& pass, std::int64_t time, Made& now) {
    CommRequest request = stream_.step.comms[pass.comms[now.comms.size()]];
    if (per_period_.empty()) count_per_period();
    request.sequence += static_cast<std::uint64_t>(time) * per_period_[event.id];
    now.comms.push_back(static_cast<std::uint32_t>(stream_.step.comms.size()));
    stream_.step.comms.push_back(std::move(request));
  }

  void count_per_period() {
    per_period_.assign(stream_.comm_streams.size(), 0);
    for (std::size_t i = period_.first; i < period_.second; ++i) {
      for (const PassLog::Event& event : log_.passes()[i].events) {
        if (event.what == PassLog::What::kCommStart) ++per_period_[event.id];
      }
    }
  }

  void count_comms(std::int64_t times) {
    for (std::size_t i = 0; i < per_period_.size(); ++i)
      stream_.comm_streams[i].repeated += static_cast<std::uint64_t>(times) * per_period_[i];
  }

  void move_leftovers(std::int32_t by) {
    for (const Leftover& each : blocks_) {
      MemoryBlock* const block = find(each.kind, each.microbatch + by)->blocks[each.index];
      *each.holder = block;
      block->holder = each.holder;
    }
    for (const Leftover& each : comms_) {
      const std::uint32_t handle = find(each.kind, each.microbatch)->comms[each.index];
      stream_.moved[handle] = find(each.kind, each.microbatch + by)->comms[each.index];
    }
  }

  RankRecorder& recorder_;
  RankRecorder::Impl& stream_;
  MemoryAccount& memory_;
  const PassLog& log_;
  PassLog::Range period_;
  std::int32_t shift_ = 0;  ///< micro-batches from one period to the next
  std::vector<PassLog::Place> kept_;
  std::vector<Made> made_;
  std::unordered_map<std::uint64_t, std::uint32_t> place_;  ///< (kind, micro-batch) → made_
  std::vector<Leftover> blocks_, comms_;
  std::vector<std::uint64_t>
      per_period_;  ///< by stream of communications: how many a period starts
};

void RankRecorder::log_passes() {
  impl_->replays = true;
  restart_log();
}

void RankRecorder::restart_log() {
  Impl& s = *impl_;
  if (!s.replays) return;
  s.logs = true;
  s.moved.clear();
  s.log.clear(memory_.next_serial(), memory_.op());
  memory_.record_to(&s.log);
}

void RankRecorder::mark_period() {
  cut("period border");
  if (impl_->logs) impl_->log.mark(memory_.op());
}

std::optional<std::vector<MemoryBlock*>> RankRecorder::repeat_period(
    std::int64_t times, std::span<MemoryBlock* const> kept) {
  TRELLIS_CHECK(times > 0, "a period is repeated once at least");
  if (!impl_->logs || clock_->slicing()) return std::nullopt;
  cut("period border");
  PeriodRepeater repeater(*this);
  if (!repeater.prepare(kept)) return std::nullopt;
  return repeater.run(times);
}

}  // namespace trellis::device
