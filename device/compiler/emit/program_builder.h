#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "device/compiler/emit/phase.h"
#include "device/compiler/emit/sync.h"
#include "sim/config/system_config.h"

namespace trellis::device {

/// Collects phases into a Program.
///
/// Sync is the master of ceremonies: a phase starts when Sync has posted its "gate" semaphore to
/// every engine, and it is finished when Sync has "joined" it: taken the end post of every engine
/// and one post per store. Phases may overlap two deep: phase k starts once k−2 is joined, and
/// waits for k−1 too when they share HBM buffers (one writes) or SBUF/PSUM ranges.
class ProgramBuilder {
 public:
  static constexpr int kOwnSemaphores = 17;  ///< gates, ends and stores; the rest are for phases
  ProgramBuilder(std::string name, const sim::CoreConfig& core);

  std::uint32_t add_kernel(const isa::Kernel& kernel);
  isa::Kernel& kernel(std::uint32_t index) { return program_.kernels[index]; }
  std::uint32_t add_hbm(const std::string& name, std::int64_t bytes, std::int32_t slot);
  std::uint32_t scratch(std::int64_t bytes);  ///< HBM owned by the program

  /// Everything stored by earlier phases is visible to later ones.
  void append(Phase phase);
  void end_segment(const std::vector<isa::CommPoint>& then);
  isa::Program finish(const std::vector<isa::CommPoint>& then = {});

  [[nodiscard]] std::int64_t sbuf_bytes() const { return core_.limits.sbuf_bytes_per_partition; }
  [[nodiscard]] const sim::CoreConfig& core() const { return core_; }

 private:
  struct Running {
    std::array<bool, isa::kNumEngines> engines{};
    std::int64_t stores = 0;
    std::vector<SyncPlan::Token> sync_drains;  ///< physical semaphores
    std::vector<std::uint16_t> semaphores;     ///< given back at the join
    std::vector<std::size_t> waiters;          ///< of `semaphores`
    std::set<std::uint32_t> reads, writes;     ///< HBM buffers
    std::int64_t sbuf_begin = 0, sbuf_end = 0, psum_begin = 0, psum_end = 0;
    int parity = 0;
    bool joined = true;
  };

  void place_memory(const Phase& phase, Running& now);
  [[nodiscard]] bool conflicts(const Running& before, const Running& now) const;
  void collect_hbm(const Phase& phase, Running& now) const;
  void add_buffers(Phase& phase, const Running& now);
  std::vector<std::uint16_t> assign_semaphores(const SyncPlan& plan, Running& now);
  std::uint16_t take_semaphore(int waiter, Running& now);
  void join(Running& running, isa::Instruction& into);
  void emit_queues(const Phase& phase, const SyncPlan& plan, const std::vector<std::uint16_t>& ids,
                   Running& now, isa::Instruction gate);
  /// Sync starts the phase's engines when the gate's waits are over.
  void emit_gate(const Phase& phase, const SyncPlan& plan, const std::vector<std::uint16_t>& ids,
                 const Running& now, isa::Instruction gate);
  /// Begin or end of the loop at `place` of the phase's entries, in the queue of one engine.
  void emit_loop(const Phase& phase, const SyncPlan& plan, const std::vector<std::uint16_t>& ids,
                 std::size_t place, int engine);
  std::vector<isa::Instruction>& queue(int engine) {
    return program_.segments.back().queues[static_cast<std::size_t>(engine)];
  }

  sim::CoreConfig core_;
  isa::Program program_;
  Running previous_, before_previous_;
  int parity_ = 0;
  std::uint16_t next_semaphore_ = 0;
  std::array<std::vector<std::uint16_t>, isa::kNumEngines>
      free_;  ///< by waiting engine: a semaphore has one waiter
};

}  // namespace trellis::device
