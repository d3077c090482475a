#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "sim/isa/program.h"

namespace trellis::sim::functional {

/// Engines, and a ring of each engine's DMA queues.
inline constexpr int kActors = isa::kNumEngines * (1 + isa::kNumDmaQueues);

/// Where an instruction is.
struct Site {
  std::size_t segment = 0;
  isa::Engine engine = isa::Engine::kSync;
  std::size_t index = 0;  ///< in the engine's queue
  auto operator<=>(const Site&) const = default;
};

enum class HazardKind : std::uint8_t {
  kRace,       ///< two accesses, one of them a write, that no semaphore orders
  kUnwritten,  ///< a read of bytes that were never written
};

/// A mistake in a program's synchronisation or addressing.
struct Hazard {
  HazardKind kind = HazardKind::kRace;
  Site first, second;          ///< kUnwritten: both are the reader
  std::uint32_t buffer = 0;    ///< of the second access
  std::int64_t partition = 0;  ///< SBUF and PSUM: physical
  std::int64_t byte = 0;       ///< in the partition, or in the HBM buffer
  std::string text;            ///< one line: engines, instructions, buffer, place
};

/// The instructions that happened before an actor's next one, as a number for each actor.
using Clock = std::array<std::uint32_t, kActors>;

/// Finds hazards while a program runs, whatever order the run takes: an access races with an
/// earlier one unless a chain of queue order, transfer starts and semaphores leads from that one to
/// it (vector clocks). Transfers of one ring follow each other in order. A gather or scatter
/// touches the rows that its indices name, a copy from a displaced address its whole buffer.
class HazardFinder {
 public:
  HazardFinder(const isa::Program& program, const isa::Limits& limits);

  /// Everything before a segment happened before everything in it.
  void begin_segment(std::size_t segment);
  /// The values of an external buffer are there before the program starts.
  void mark_written(std::uint32_t buffer);
  /// An engine has executed its queue of the segment.
  void finish(int engine) { finished_[static_cast<std::size_t>(engine)] = true; }
  /// A semaphore's units carry the clock of who posted them; a wait takes the oldest ones.
  void wait(int actor, const isa::Instruction& instruction);
  void post(int actor, const isa::Instruction& instruction);
  /// An engine hands a transfer to a ring; the ring starts the oldest one.
  void issue(int engine, int ring);
  void start(int ring);
  /// Records what a resolved instruction reads and writes. `rows`: of a gather or scatter, where
  /// each row begins in its table, in elements after the pattern's offset.
  void access(int actor, Site site, const isa::Instruction& instruction,
              const std::vector<std::int64_t>& rows);

  /// At most 64, each pair of instructions once.
  [[nodiscard]] const std::vector<Hazard>& found() const { return found_; }

 private:
  struct Access {
    Site site;
    int actor = 0;
    std::uint32_t moment = 0;
    bool write = false;
    std::int64_t first_partition = 0, last_partition = 0;     ///< inclusive; HBM: 0
    std::vector<std::pair<std::int64_t, std::int64_t>> runs;  ///< bytes [begin, end), ascending
  };
  struct Region {  ///< SBUF, PSUM, or one HBM buffer
    std::vector<Access> accesses;
    std::vector<std::uint8_t> written;  ///< by byte
    std::int64_t row = 0;               ///< bytes of a partition
    std::size_t prune_at = 64;
  };
  struct Unit {
    std::uint32_t count;
    Clock clock;
  };

  /// How far an operand reaches: its pattern, the pattern at each row, or the whole buffer.
  struct Reach {
    bool whole = false;
    const std::vector<std::int64_t>* rows = nullptr;
  };

  [[nodiscard]] Region& region(std::uint32_t buffer);
  [[nodiscard]] Access touched(int actor, Site site, const isa::AccessPattern& pattern, bool write,
                               const Reach& reach) const;
  void read(int actor, Site site, const isa::AccessPattern& pattern, const Reach& reach);
  void write(int actor, Site site, const isa::AccessPattern& pattern, const Reach& reach);
  void find_races(Region& region, const Access& access, std::uint32_t buffer);
  void find_unwritten(const Region& region, const Access& access, std::uint32_t buffer);
  void prune(Region& region) const;
  void report(HazardKind kind, const Access& first, const Access& second, std::uint32_t buffer,
              std::int64_t partition, std::int64_t byte);

  const isa::Program& program_;
  std::size_t segment_ = 0;
  std::vector<Clock> clocks_;
  std::vector<bool> finished_;              ///< by engine
  std::vector<std::deque<Clock>> pending_;  ///< by actor: the clocks of transfers not yet started
  std::vector<std::deque<Unit>> units_;     ///< by semaphore
  std::vector<Region> hbm_;
  Region sbuf_, psum_;
  std::vector<Hazard> found_;
};

}  // namespace trellis::sim::functional
