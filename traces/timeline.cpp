#include "traces/timeline.h"

#include <algorithm>
#include <bit>
#include <tuple>

#include "base/check.h"

namespace trellis::traces {
namespace {

constexpr std::int64_t kOpen = -1;  ///< as a duration

}  // namespace

double Timeline::StoredArg::as_double() const { return std::bit_cast<double>(bits); }

Timeline::Timeline(std::size_t max_events) : max_events_(max_events) {}

ProcessId Timeline::add_process(std::string name, int sort_index) {
  processes_.push_back({std::move(name), sort_index});
  return {static_cast<std::uint32_t>(processes_.size() - 1)};
}

TrackId Timeline::add_track(ProcessId process, std::string name, int sort_index) {
  TRELLIS_CHECK(process.v < processes_.size(),
                "track '" + name + "' belongs to an unknown process");
  tracks_.push_back({process, std::move(name), sort_index});
  busy_.emplace_back();
  return {static_cast<std::uint32_t>(tracks_.size() - 1)};
}

CounterId Timeline::add_counter(ProcessId process, std::string name, std::string unit) {
  TRELLIS_CHECK(process.v < processes_.size(),
                "counter '" + name + "' belongs to an unknown process");
  counters_.push_back({process, std::move(name), std::move(unit)});
  return {static_cast<std::uint32_t>(counters_.size() - 1)};
}

bool Timeline::admit() {
  if (events_ < max_events_) {
    ++events_;
    return true;
  }
  ++dropped_;
  return false;
}

std::uint32_t Timeline::intern(std::string_view text) {
  if (const auto found = text_ids_.find(text); found != text_ids_.end()) return found->second;
  const auto id = static_cast<std::uint32_t>(texts_.size());
  text_ids_.emplace(texts_.emplace_back(text), id);
  return id;
}

Timeline::ArgRange Timeline::append_args(std::span<const Arg> args) {
  const auto begin = static_cast<std::uint32_t>(arg_key_.size());
  for (const Arg& arg : args) {
    arg_key_.push_back(intern(arg.key));
    arg_type_.push_back(static_cast<StoredArg::Type>(arg.value.index()));
    if (const auto* integer = std::get_if<std::int64_t>(&arg.value)) arg_bits_.push_back(*integer);
    if (const auto* number = std::get_if<double>(&arg.value))
      arg_bits_.push_back(std::bit_cast<std::int64_t>(*number));
    if (const auto* text = std::get_if<std::string_view>(&arg.value))
      arg_bits_.push_back(intern(*text));
  }
  return {begin, static_cast<std::uint32_t>(arg_key_.size())};
}

std::uint64_t Timeline::slice(TrackId track, std::string_view name, std::string_view category,
                              Picoseconds start, Picoseconds duration, std::span<const Arg> args) {
  TRELLIS_CHECK(track.v < tracks_.size(),
                "slice '" + std::string(name) + "' is on an unknown track");
  TRELLIS_CHECK(start.value >= 0 && duration.value >= 0,
                "slice '" + std::string(name) + "' starts at " + std::to_string(start.value) +
                    " ps and lasts " + std::to_string(duration.value) + " ps");
  busy_[track.v] += duration;
  return append_slice(track, name, category, start, duration.value, args);
}

std::uint64_t Timeline::open_slice(TrackId track, std::string_view name, std::string_view category,
                                   Picoseconds start, std::span<const Arg> args) {
  TRELLIS_CHECK(track.v < tracks_.size() && start.value >= 0,
                "open slice '" + std::string(name) + "' starts at " + std::to_string(start.value) +
                    " ps of track " + std::to_string(track.v));
  return append_slice(track, name, category, start, kOpen, args);
}

std::uint64_t Timeline::append_slice(TrackId track, std::string_view name,
                                     std::string_view category, Picoseconds start,
                                     std::int64_t duration, std::span<const Arg> args) {
  if (!admit()) return kDroppedEvent;
  slice_track_.push_back(track.v);
  slice_name_.push_back(intern(name));
  slice_category_.push_back(intern(category));
  slice_start_.push_back(start.value);
  slice_duration_.push_back(duration);
  slice_args_.push_back(append_args(args));
  return slice_track_.size() - 1;
}

void Timeline::instant(TrackId track, std::string_view name, std::string_view category,
                       Picoseconds at, std::span<const Arg> args) {
  TRELLIS_CHECK(track.v < tracks_.size(),
                "instant '" + std::string(name) + "' is on an unknown track");
  TRELLIS_CHECK(at.value >= 0,
                "instant '" + std::string(name) + "' is at " + std::to_string(at.value) + " ps");
  if (!admit()) return;
  const std::uint32_t name_id = intern(name);
  const std::uint32_t category_id = intern(category);
  instants_.push_back({track, name_id, category_id, at, append_args(args)});
}

void Timeline::counter(CounterId counter, Picoseconds at, std::int64_t value) {
  TRELLIS_CHECK(counter.v < counters_.size(), "sample of an unknown counter");
  TRELLIS_CHECK(at.value >= 0, "sample of counter '" + counters_[counter.v].name + "' at " +
                                   std::to_string(at.value) + " ps");
  if (admit()) samples_.push_back({counter, at, value});
}

void Timeline::flow(std::uint64_t from_event, std::uint64_t to_event) {
  if (from_event == kDroppedEvent || to_event == kDroppedEvent) return;
  TRELLIS_CHECK(from_event < num_slices() && to_event < num_slices(),
                "flow from slice " + std::to_string(from_event) + " to " +
                    std::to_string(to_event) + ", of " + std::to_string(num_slices()));
  if (admit()) flows_.push_back({from_event, to_event});
}

Picoseconds Timeline::busy(TrackId track) const {
  TRELLIS_CHECK(track.v < tracks_.size(), "busy() of an unknown track");
  return busy_[track.v];
}

Timeline::Slice Timeline::slice(std::size_t i) const {
  const bool is_open = slice_duration_[i] == kOpen;
  return {{slice_track_[i]},
          slice_name_[i],
          slice_category_[i],
          Picoseconds(slice_start_[i]),
          Picoseconds(is_open ? std::numeric_limits<std::int64_t>::max() - slice_start_[i]
                              : slice_duration_[i]),
          slice_args_[i],
          is_open};
}

Timeline::StoredArg Timeline::arg(std::uint32_t i) const {
  return {arg_key_[i], arg_type_[i], arg_bits_[i]};
}

std::string Timeline::warning() const {
  if (dropped_ == 0) return "";
  return std::to_string(dropped_) + " events dropped: the timeline holds at most " +
         std::to_string(max_events_) + " events";
}

std::vector<ProcessId> Timeline::processes_in_order() const {
  std::vector<ProcessId> order;
  for (std::uint32_t i = 0; i < processes_.size(); ++i) order.push_back({i});
  const auto key = [&](ProcessId p) { return std::tuple(processes_[p.v].sort_index, p.v); };
  std::sort(order.begin(), order.end(), [&](ProcessId a, ProcessId b) { return key(a) < key(b); });
  return order;
}

std::vector<TrackId> Timeline::tracks_in_order() const {
  std::vector<TrackId> order;
  for (std::uint32_t i = 0; i < tracks_.size(); ++i) order.push_back({i});
  const auto key = [&](TrackId t) {
    const Track& track = tracks_[t.v];
    return std::tuple(processes_[track.process.v].sort_index, track.process.v, track.sort_index,
                      t.v);
  };
  std::sort(order.begin(), order.end(), [&](TrackId a, TrackId b) { return key(a) < key(b); });
  return order;
}

}  // namespace trellis::traces
