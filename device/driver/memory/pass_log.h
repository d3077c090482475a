#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/driver/memory/caching_allocator.h"

namespace trellis::device {

/// The actions of one rank since its step began, pass by pass, in terms that do not depend on the
/// micro-batch: memory is named by the pass that allocated it ("the 12th allocation of the forward
/// pass three micro-batches before this one"), communications by the pass that started them. Two
/// stretches of passes with equal logs did the same, and the next one would do it again: see
/// RankRecorder::repeat_period. A pass begins where its scope opens and lasts until the next one
/// opens. Only the rank's own thread may use the rank's memory meanwhile.
class PassLog {
 public:
  /// Something that a pass made.
  struct Ref {
    std::uint32_t kind =
        0;  ///< of the pass; kElsewhere: made before the step, `index` is its serial number
    std::int32_t lag = 0;  ///< how many micro-batches that pass lies before the one that names it
    std::uint64_t index = 0;  ///< the pass's n-th allocation, or communication
    bool operator==(const Ref&) const = default;
  };
  enum class What : std::uint8_t {
    kAllocate,
    kFree,
    kRecategorize,
    kUseByStream,
    kGraphBegins,
    kGraphRan,
    kCommStart,
    kHostWaits,
    kMark,
    kOther
  };
  struct Event {
    What what = What::kOther;
    BufferCategory category = BufferCategory::kTemporary;  ///< kAllocate, kRecategorize
    std::uint32_t ops = 0;  ///< operations recorded since the event before
    std::uint32_t id = 0;  ///< kAllocate: scope; kGraphRan: place in Pass::runs; kCommStart: stream
                           ///< of communications; kHostWaits: stream + 1
    std::int64_t bytes = 0;  ///< kAllocate; kCommStart: elements
    Ref ref = {};  ///< kFree, kRecategorize, kUseByStream; kCommStart: `kind` is that of the
                   ///< communication and its type
    bool operator==(const Event&) const = default;
  };
  struct Run {
    std::uint32_t graph = 0;
    int stream = 0;
    std::vector<Ref> comms;
    bool operator==(const Run&) const = default;
  };
  struct Pass {
    std::uint32_t kind = 0;
    std::int32_t microbatch = 0;
    std::vector<Event> events;
    std::vector<Run> runs;
    std::vector<MemoryBlock*> blocks;  ///< by allocation; freed ones too
    std::vector<std::uint32_t> comms;  ///< by start: handle
  };
  struct Place {
    std::uint32_t pass = 0;
    std::uint64_t index = 0;
  };
  static constexpr std::uint32_t kElsewhere = 0xffffffffu;

  /// Forgets everything; allocations from serial number `first_serial` on, and communications from
  /// handle 0 on, are recorded from now on.
  void clear(std::uint64_t first_serial, std::uint32_t op);

  void begin_pass(const std::string& phase, std::int32_t microbatch);
  void allocated(MemoryBlock& block, std::uint32_t op);
  /// kFree, kRecategorize, kUseByStream
  void touched(What what, const MemoryBlock& block, BufferCategory category, std::uint32_t op);
  void graph_begins(std::uint32_t op) { add({What::kGraphBegins}, op); }
  void graph_ran(std::uint32_t graph, int stream, const std::vector<std::uint32_t>& comms,
                 std::uint32_t op);
  void comm_started(std::uint32_t handle, std::uint32_t stream, std::uint32_t kind,
                    std::int64_t elements, std::uint32_t op);
  void host_waits(int stream, std::uint32_t op) {
    add({What::kHostWaits, {}, 0, static_cast<std::uint32_t>(stream + 1)}, op);
  }
  /// Something that is not repeated: the passes around it are like no others.
  void other(std::uint32_t op) { add({What::kOther}, op); }
  /// A period of the rank's schedule ends.
  void mark(std::uint32_t op);

  /// The passes of the last two periods, none when they did not do the same; `shift` receives how
  /// many micro-batches lie between them.
  using Range = std::pair<std::size_t, std::size_t>;  ///< in passes()
  [[nodiscard]] Range last_period(std::int32_t& shift) const;

  [[nodiscard]] const std::vector<Pass>& passes() const { return passes_; }
  /// Where a block of this step was allocated. REQUIRES: serial >= first_serial().
  [[nodiscard]] const Place& place(std::uint64_t serial) const {
    return places_[serial - first_serial_];
  }
  [[nodiscard]] std::uint64_t first_serial() const { return first_serial_; }

 private:
  void add(Event event, std::uint32_t op);
  Pass& pass();

  std::vector<Pass> passes_;
  std::vector<std::size_t> marks_;  ///< number of passes then
  bool between_ = true;             ///< since the last mark no pass has begun
  std::uint64_t first_serial_ = 0;
  std::uint32_t last_op_ = 0;
  std::vector<Place> places_;       ///< by serial − first_serial_
  std::vector<Place> comm_places_;  ///< by handle
  std::map<std::pair<std::string, std::int32_t>, std::uint32_t>
      openings_;  ///< (phase, micro-batch) → how often its scope opened
  std::map<std::pair<std::string, std::uint32_t>, std::uint32_t>
      kinds_;  ///< (phase, how often before) → kind, from 1
};

}  // namespace trellis::device
