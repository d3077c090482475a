#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/units.h"

namespace trellis::traces {

struct ProcessId {
  std::uint32_t v = 0;
};
struct TrackId {
  std::uint32_t v = 0;
};
struct CounterId {
  std::uint32_t v = 0;
};

struct Arg {
  std::string_view key;
  std::variant<std::int64_t, double, std::string_view> value;
};

/// Returned by slice() for a slice that was dropped; flow() ignores it.
inline constexpr std::uint64_t kDroppedEvent = std::numeric_limits<std::uint64_t>::max();

/// Events with their times: slices and instants on tracks, samples of counters, arrows between
/// slices, in integer picoseconds.
///
///   process "rank 0" ─┬─ track "Tensor"   ▇▇▇▇ ▇▇▇      slices, nested or disjoint;
///                     ├─ track "DMA load" ▇▇  ▇▇        crossing ones are clipped by writers
///                     └─ counter "HBM" (bytes)
///
/// Append-only and bounded. Columns of integers with interned texts: about 40 B per slice and 16 B
/// per argument.
class Timeline {
 public:
  struct Process {
    std::string name;
    int sort_index = 0;
  };
  struct Track {
    ProcessId process;
    std::string name;
    int sort_index = 0;
  };
  struct Counter {
    ProcessId process;
    std::string name;
    std::string unit;
  };
  /// Arguments of one event: a range for arg().
  struct ArgRange {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
  };
  struct Slice {
    TrackId track;
    std::uint32_t name = 0;      ///< for text()
    std::uint32_t category = 0;  ///< for text()
    Picoseconds start, duration;
    ArgRange args;
    bool is_open = false;  ///< it did not end: its duration lasts to the end of time
    [[nodiscard]] Picoseconds end() const { return start + duration; }
  };
  struct Instant {
    TrackId track;
    std::uint32_t name = 0;
    std::uint32_t category = 0;
    Picoseconds at;
    ArgRange args;
  };
  struct Sample {
    CounterId counter;
    Picoseconds at;
    std::int64_t value = 0;
  };
  struct Flow {
    std::uint64_t from = 0;  ///< slice indices
    std::uint64_t to = 0;
  };
  /// An argument as stored: `bits` is the integer, the bits of the double, or the id of the text.
  struct StoredArg {
    enum class Type : std::uint8_t { kInteger, kDouble, kText };
    std::uint32_t key = 0;  ///< for text()
    Type type = Type::kInteger;
    std::int64_t bits = 0;
    [[nodiscard]] double as_double() const;
  };

  /// Beyond `max_events` slices, instants, samples and flows (together), further ones are dropped
  /// and counted.
  explicit Timeline(std::size_t max_events = 4'000'000);

  Timeline(Timeline&&) noexcept = default;
  Timeline& operator=(Timeline&&) noexcept = default;

  ProcessId add_process(std::string name, int sort_index);
  TrackId add_track(ProcessId process, std::string name, int sort_index);
  CounterId add_counter(ProcessId process, std::string name, std::string unit);

  /// REQUIRES: start ≥ 0, duration ≥ 0. Returns the slice's index, or kDroppedEvent.
  std::uint64_t slice(TrackId track, std::string_view name, std::string_view category,
                      Picoseconds start, Picoseconds duration, std::span<const Arg> args = {});
  /// A slice that did not end, such as what a rank waits for when its run fails. REQUIRES: start ≥
  /// 0.
  std::uint64_t open_slice(TrackId track, std::string_view name, std::string_view category,
                           Picoseconds start, std::span<const Arg> args = {});
  void instant(TrackId track, std::string_view name, std::string_view category, Picoseconds at,
               std::span<const Arg> args = {});
  void counter(CounterId counter, Picoseconds at, std::int64_t value);
  /// An arrow between two slices. Without effect when either was dropped.
  void flow(std::uint64_t from_event, std::uint64_t to_event);

  /// Sum of the durations of all slices of a track, the dropped ones included: sums stay exact when
  /// the picture is cut.
  [[nodiscard]] Picoseconds busy(TrackId track) const;
  [[nodiscard]] std::size_t dropped() const { return dropped_; }
  [[nodiscard]] std::size_t max_events() const { return max_events_; }

  [[nodiscard]] const std::vector<Process>& processes() const { return processes_; }
  [[nodiscard]] const std::vector<Track>& tracks() const { return tracks_; }
  [[nodiscard]] const std::vector<Counter>& counters() const { return counters_; }
  [[nodiscard]] std::size_t num_slices() const { return slice_track_.size(); }
  [[nodiscard]] Slice slice(std::size_t index) const;
  [[nodiscard]] std::size_t num_instants() const { return instants_.size(); }
  [[nodiscard]] const Instant& instant(std::size_t index) const { return instants_[index]; }
  [[nodiscard]] const std::vector<Sample>& samples() const { return samples_; }
  [[nodiscard]] const std::vector<Flow>& flows() const { return flows_; }
  [[nodiscard]] StoredArg arg(std::uint32_t index) const;
  [[nodiscard]] const std::string& text(std::uint32_t id) const { return texts_[id]; }
  [[nodiscard]] std::size_t num_texts() const { return texts_.size(); }
  /// "12 events dropped: …", or "" when nothing was dropped: every writer shows it.
  [[nodiscard]] std::string warning() const;

  /// Tracks in the order in which they are shown: by (process sort index, process, track sort
  /// index, track).
  [[nodiscard]] std::vector<TrackId> tracks_in_order() const;
  [[nodiscard]] std::vector<ProcessId> processes_in_order() const;

 private:
  bool admit();
  std::uint64_t append_slice(TrackId track, std::string_view name, std::string_view category,
                             Picoseconds start, std::int64_t duration, std::span<const Arg> args);
  std::uint32_t intern(std::string_view text);
  ArgRange append_args(std::span<const Arg> args);

  std::size_t max_events_;
  std::size_t dropped_ = 0;
  std::size_t events_ = 0;
  std::vector<Process> processes_;
  std::vector<Track> tracks_;
  std::vector<Counter> counters_;
  std::vector<Picoseconds> busy_;  ///< by track

  std::vector<std::uint32_t> slice_track_, slice_name_, slice_category_;
  std::vector<std::int64_t> slice_start_, slice_duration_;  ///< duration -1: open
  std::vector<ArgRange> slice_args_;
  std::vector<Instant> instants_;
  std::vector<Sample> samples_;
  std::vector<Flow> flows_;

  std::vector<std::uint32_t> arg_key_;
  std::vector<StoredArg::Type> arg_type_;
  std::vector<std::int64_t> arg_bits_;

  std::deque<std::string> texts_;  ///< deque: the map's keys point into it
  std::unordered_map<std::string_view, std::uint32_t> text_ids_;
};

}  // namespace trellis::traces
