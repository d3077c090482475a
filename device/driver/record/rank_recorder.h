#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/compiler/graph/op_record.h"
#include "device/driver/memory/memory_account.h"
#include "device/driver/timing/step_stream.h"

namespace trellis::device {

class OperatorUses;
class RankClock;

/// The phase of a program that announces none, as far as the device can find it out.
enum class AutoPhase : std::uint8_t { kNone, kEval, kForward, kBackward, kOptimizer };
[[nodiscard]] std::string_view name(AutoPhase);

/// One rank's stream of operations. Used only by the thread that is bound to the rank.
class RankRecorder {
 public:
  /// `rank`: device index; `world_rank`: who this rank is among all, those included that do not
  /// run.
  RankRecorder(int rank, int world_rank, Bytes hbm, bool record, bool unlimited_memory = false);

  // scopes: RECORD_FUNCTION user scopes, as text "phase=forward", "microbatch=3",
  // "layer=model.layers.0"; others are ignored
  void push_scope(std::string_view text);
  void pop_scope(std::string_view text);
  /// Scope of a forward operation by its autograd sequence number: so a backward operation is
  /// charged to its layer.
  void set_backward_sequence(std::int64_t sequence);  ///< −1: none
  void note_sequence(std::int64_t next_sequence);     ///< at layer borders in forward

  // Automatic phases: until the first "phase=" scope. Graphs then also end where the host waits for
  // the device and after kMaxAutomaticOps.
  static constexpr std::size_t kMaxAutomaticOps = 2000;  ///< compile time grows faster than a graph
  [[nodiscard]] bool automatic() const { return automatic_; }
  void phases_are_announced();  ///< from now on only scopes and the program's own cuts end a graph
  /// Before each operation. No-grad stretches of a forward belong to it.
  void enter(AutoPhase phase);

  // the simulated clock
  RankClock& clock() { return *clock_; }
  void set_stream(int stream);  ///< operations from now on are issued to this stream of the clock
  /// The host waits for what a stream has got so far; −1: for all streams.
  void host_waits(int stream);
  void host_waits() { host_waits(stream_); }
  /// While RankClock::slicing(): what the host is executing, for DeviceSlice::correlation.
  void correlate(std::uint64_t correlation) { correlation_ = correlation; }

  [[nodiscard]] std::uint64_t new_buffer();  ///< next buffer id
  /// Called when the storage of a buffer is released; a buffer released before its graph ends is a
  /// temporary of that graph.
  void release_buffer(std::uint64_t buffer);
  [[nodiscard]] bool recording() const { return record_; }
  InternTable& interned() { return interned_; }
  [[nodiscard]] const InternTable& interned() const { return interned_; }
  /// An operation's name and the text of its non-tensor arguments, interned.
  struct OpTexts {
    std::uint32_t schema = 0, scalars = 0;
  };
  /// `bytes[i]`: size of operand i's whole buffer.
  void record(OpTexts texts, std::span<const Operand> inputs, std::span<const Operand> outputs,
              std::span<const std::int64_t> bytes);
  void record(std::string_view schema, std::string_view scalars, std::span<const Operand> inputs,
              std::span<const Operand> outputs, std::span<const std::int64_t> bytes);
  std::int64_t comm_start(const CommRequest& request, std::span<const Operand> inputs,
                          std::span<const Operand> outputs, std::span<const std::int64_t> bytes);
  void comm_wait(std::int64_t handle);
  void cut(std::string_view reason);  ///< ends the current graph
  void discard();                     ///< forgets what was recorded since the last end of a step
  void end_step();                    ///< cuts, and keeps what was recorded as the finished step

  // Passes that are like those before them need not be executed. REQUIRES, for all of it: only the
  // rank's own thread uses its memory.
  void log_passes();   ///< from now on; before it the two below are no use
  void mark_period();  ///< a period of the schedule ends here, and with it the current graph
  /// Does `times` more times what was done between the last two marks, if that is what was done
  /// between the two before, some micro-batches later: graphs, communications with the numbers that
  /// follow, memory through the allocator, operations counted. Buffers and communications under way
  /// move on with it: who holds one holds its counterpart afterwards. `kept`: blocks that were
  /// allocated in the last period and live on, one of each period; returns their counterparts,
  /// period by period. Nullopt, and nothing was done: the periods differ. At most once per step.
  /// Throws Error(kDoesNotFit).
  [[nodiscard]] std::optional<std::vector<MemoryBlock*>> repeat_period(
      std::int64_t times, std::span<MemoryBlock* const> kept);

  MemoryAccount& memory() { return memory_; }
  [[nodiscard]] const MemoryAccount& memory() const { return memory_; }
  [[nodiscard]] const Scope& current_scope() const { return scope_; }
  /// The current scope interned, without its micro-batch: equal scopes of equal graphs are equal
  /// ids.
  [[nodiscard]] std::uint32_t scope_id();
  /// Uses of operators in everything recorded so far that was not discarded.
  [[nodiscard]] OperatorUses uses() const;
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int world_rank() const { return world_rank_; }

  struct Impl;
  [[nodiscard]] Impl& impl() { return *impl_; }
  [[nodiscard]] const Impl& impl() const { return *impl_; }
  ~RankRecorder();

 private:
  void restart_log();
  void forget_what_is_too_much();  ///< REQUIRES: no graph is open
  friend class PeriodRepeater;

  int rank_;
  int world_rank_;
  bool record_;
  InternTable interned_;
  Scope scope_;
  MemoryAccount memory_;
  bool automatic_ = true;
  AutoPhase auto_phase_ = AutoPhase::kNone;  ///< of the open graph
  int stream_ = 0;
  std::uint64_t correlation_ = 0;
  std::unique_ptr<Impl> impl_;
  std::unique_ptr<RankClock> clock_;
};

}  // namespace trellis::device
