#include "traces/perfetto_writer.h"

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>

#include <protozero/pbf_writer.hpp>

#include "traces/slice_nesting.h"

namespace trellis::traces {
namespace {

using protozero::pbf_writer;

// Field numbers of perfetto/trace/*.proto, named message_field as there.
enum : std::uint32_t {
  kTrace_packet = 1,
  kPacket_timestamp = 8,
  kPacket_trusted_packet_sequence_id = 10,
  kPacket_track_event = 11,
  kPacket_interned_data = 12,
  kPacket_sequence_flags = 13,
  kPacket_track_descriptor = 60,
  kDescriptor_uuid = 1,
  kDescriptor_name = 2,
  kDescriptor_process = 3,
  kDescriptor_parent_uuid = 5,
  kDescriptor_counter = 8,
  kDescriptor_child_ordering = 11,
  kDescriptor_sibling_order_rank = 12,
  kDescriptor_sibling_merge_behavior = 15,
  kProcess_pid = 1,
  kProcess_legacy_sort_index = 3,
  kProcess_process_name = 6,
  kCounter_unit = 3,
  kCounter_unit_name = 6,
  kEvent_category_iids = 3,
  kEvent_debug_annotations = 4,
  kEvent_type = 9,
  kEvent_name_iid = 10,
  kEvent_track_uuid = 11,
  kEvent_name = 23,
  kEvent_counter_value = 30,
  kEvent_flow_ids = 47,
  kEvent_terminating_flow_ids = 48,
  kInterned_event_categories = 1,
  kInterned_event_names = 2,
  kInterned_debug_annotation_names = 3,
  kInterned_debug_annotation_string_values = 29,
  kEntry_iid = 1,
  kEntry_text = 2,
  kAnnotation_name_iid = 1,
  kAnnotation_int_value = 4,
  kAnnotation_double_value = 5,
  kAnnotation_string_value_iid = 17,
};

enum EventType : std::int32_t {
  kSliceBegin = 1,
  kSliceEnd = 2,
  kInstantEvent = 3,
  kCounterSample = 4
};
constexpr std::int32_t kExplicitOrdering = 3;
constexpr std::int32_t kNeverMerge = 2;  ///< equal names are different tracks here
constexpr std::int32_t kUnitSizeBytes = 3;
constexpr std::uint32_t kStateCleared = 1, kNeedsState = 2;
/// The sequence of the first part. A part is one packet sequence: one set of interned texts.
constexpr std::uint32_t kSequence = 1;
constexpr std::int32_t kProcessesOfAPart = 1 << 20;

/// Interned ids of one kind: 1, 2, … in the order of first use; 0 is no id.
class InternedIds {
 public:
  explicit InternedIds(std::size_t num_texts) : ids_(num_texts, 0) {}
  void use(std::uint32_t text) {
    if (ids_[text] != 0) return;
    used_.push_back(text);
    ids_[text] = static_cast<std::uint32_t>(used_.size());
  }
  [[nodiscard]] std::uint32_t of(std::uint32_t text) const { return ids_[text]; }
  [[nodiscard]] const std::vector<std::uint32_t>& used() const { return used_; }

 private:
  std::vector<std::uint32_t> ids_;
  std::vector<std::uint32_t> used_;
};

/// Something with a time, before everything is sorted.
struct Mark {
  enum class Kind : std::uint8_t { kSample, kInstant, kBegin, kEnd };
  std::int64_t ns = 0;
  Kind kind = Kind::kSample;
  std::uint64_t index = 0;
};

std::int64_t floor_ns(Picoseconds time) { return time.value / 1000; }

class Writer {
 public:
  Writer(const Timeline& timeline, std::ostream& out, std::uint32_t part)
      : timeline_(timeline),
        out_(out),
        part_(part),
        names_(timeline.num_texts()),
        categories_(timeline.num_texts()),
        keys_(timeline.num_texts()),
        values_(timeline.num_texts()) {}

  void write() {
    collect_texts();
    write_interned();
    write_processes();
    write_tracks();
    write_counters();
    write_warning();
    write_events();
    flush(0);
  }

 private:
  // uuids are dense: 1.. processes, tracks, counters, then the track of the warning; 0 is
  // Perfetto's global track. A part has the upper half.
  [[nodiscard]] std::uint64_t first_uuid() const { return (std::uint64_t{part_} << 32) + 1; }
  [[nodiscard]] std::uint64_t uuid(ProcessId id) const { return first_uuid() + id.v; }
  [[nodiscard]] std::uint64_t uuid(TrackId id) const {
    return first_uuid() + timeline_.processes().size() + id.v;
  }
  [[nodiscard]] std::uint64_t uuid(CounterId id) const {
    return first_uuid() + timeline_.processes().size() + timeline_.tracks().size() + id.v;
  }
  [[nodiscard]] std::uint64_t warning_uuid() const {
    return uuid(CounterId{static_cast<std::uint32_t>(timeline_.counters().size())});
  }

  [[nodiscard]] std::uint32_t start_key() const {
    return static_cast<std::uint32_t>(keys_.used().size()) + 1;
  }
  [[nodiscard]] std::uint32_t duration_key() const { return start_key() + 1; }

  void collect(std::uint32_t name, std::uint32_t category, Timeline::ArgRange args) {
    names_.use(name);
    categories_.use(category);
    for (std::uint32_t i = args.begin; i < args.end; ++i) {
      const Timeline::StoredArg arg = timeline_.arg(i);
      keys_.use(arg.key);
      if (arg.type == Timeline::StoredArg::Type::kText)
        values_.use(static_cast<std::uint32_t>(arg.bits));
    }
  }

  void collect_texts() {
    for (std::size_t i = 0; i < timeline_.num_slices(); ++i) {
      const Timeline::Slice slice = timeline_.slice(i);
      collect(slice.name, slice.category, slice.args);
    }
    for (std::size_t i = 0; i < timeline_.num_instants(); ++i) {
      const Timeline::Instant& instant = timeline_.instant(i);
      collect(instant.name, instant.category, instant.args);
    }
  }

  /// One packet; `fill` adds its content. Packets gather in a buffer, so that the stream sees few
  /// large writes.
  void packet(std::uint32_t flags, const std::function<void(pbf_writer&)>& fill) {
    pbf_writer trace(buffer_);
    {
      pbf_writer one(trace, kTrace_packet);
      one.add_uint32(kPacket_trusted_packet_sequence_id, kSequence + part_);
      if (flags != 0) one.add_uint32(kPacket_sequence_flags, flags);
      fill(one);
    }
    flush(1 << 16);
  }

  void flush(std::size_t keep) {
    if (buffer_.size() <= keep) return;
    out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    buffer_.clear();
  }

  static void interned_entry(pbf_writer& data, std::uint32_t field, std::uint32_t iid,
                             const std::string& text) {
    pbf_writer entry(data, field);
    entry.add_uint64(kEntry_iid, iid);
    entry.add_string(kEntry_text, text);
  }

  void interned_table(pbf_writer& data, std::uint32_t field, const InternedIds& ids) const {
    for (const std::uint32_t text : ids.used())
      interned_entry(data, field, ids.of(text), timeline_.text(text));
  }

  void write_interned() {
    packet(kStateCleared | kNeedsState, [&](pbf_writer& one) {
      pbf_writer data(one, kPacket_interned_data);
      interned_table(data, kInterned_event_categories, categories_);
      interned_table(data, kInterned_event_names, names_);
      interned_table(data, kInterned_debug_annotation_names, keys_);
      interned_entry(data, kInterned_debug_annotation_names, start_key(), "start_ps");
      interned_entry(data, kInterned_debug_annotation_names, duration_key(), "duration_ps");
      interned_table(data, kInterned_debug_annotation_string_values, values_);
    });
  }

  void descriptor(std::uint64_t id, const std::function<void(pbf_writer&)>& fill) {
    packet(0, [&](pbf_writer& one) {
      pbf_writer track(one, kPacket_track_descriptor);
      track.add_uint64(kDescriptor_uuid, id);
      fill(track);
    });
  }

  void write_processes() {
    std::int32_t rank = static_cast<std::int32_t>(part_) * kProcessesOfAPart;
    for (const ProcessId id : timeline_.processes_in_order()) {
      descriptor(uuid(id), [&](pbf_writer& track) {
        track.add_enum(kDescriptor_child_ordering, kExplicitOrdering);
        track.add_int32(kDescriptor_sibling_order_rank, rank);
        pbf_writer process(track, kDescriptor_process);
        process.add_int32(kProcess_pid, rank + 1);
        process.add_int32(kProcess_legacy_sort_index, rank);
        process.add_string(kProcess_process_name, timeline_.processes()[id.v].name);
      });
      ++rank;
    }
  }

  void write_tracks() {
    std::int32_t rank = 0;
    for (const TrackId id : timeline_.tracks_in_order()) {
      const Timeline::Track& from = timeline_.tracks()[id.v];
      descriptor(uuid(id), [&](pbf_writer& track) {
        track.add_uint64(kDescriptor_parent_uuid, uuid(from.process));
        track.add_string(kDescriptor_name, from.name);
        track.add_int32(kDescriptor_sibling_order_rank, rank);
        track.add_enum(kDescriptor_sibling_merge_behavior, kNeverMerge);
      });
      ++rank;
    }
  }

  /// Counters are below the tracks of their process, in the order of their creation.
  void write_counters() {
    for (std::uint32_t i = 0; i < timeline_.counters().size(); ++i) {
      const Timeline::Counter& from = timeline_.counters()[i];
      descriptor(uuid(CounterId{i}), [&](pbf_writer& track) {
        track.add_uint64(kDescriptor_parent_uuid, uuid(from.process));
        track.add_string(kDescriptor_name, from.name);
        track.add_int32(kDescriptor_sibling_order_rank,
                        static_cast<std::int32_t>(timeline_.tracks().size() + i));
        pbf_writer counter(track, kDescriptor_counter);
        if (from.unit == "bytes") {
          counter.add_enum(kCounter_unit, kUnitSizeBytes);
        } else {
          counter.add_string(kCounter_unit_name, from.unit);
        }
      });
    }
  }

  void write_warning() {
    if (timeline_.dropped() == 0) return;
    descriptor(warning_uuid(),
               [](pbf_writer& track) { track.add_string(kDescriptor_name, "warning"); });
    packet(0, [&](pbf_writer& one) {
      one.add_uint64(kPacket_timestamp, 0);
      pbf_writer event(one, kPacket_track_event);
      event.add_enum(kEvent_type, kInstantEvent);
      event.add_uint64(kEvent_track_uuid, warning_uuid());
      event.add_string(kEvent_name, timeline_.warning());
    });
  }

  /// Everything with a time. The sort is stable, so the edges of a track stay nested where rounding
  /// makes their times equal.
  [[nodiscard]] std::vector<Mark> sorted_marks() const {
    std::vector<Mark> marks;
    marks.reserve(2 * timeline_.num_slices() + timeline_.num_instants() +
                  timeline_.samples().size());
    for (std::size_t i = 0; i < timeline_.samples().size(); ++i) {
      marks.push_back({floor_ns(timeline_.samples()[i].at), Mark::Kind::kSample, i});
    }
    const std::vector<std::vector<SliceEdge>> edges = nested_edges(timeline_);
    for (const TrackId track : timeline_.tracks_in_order()) {
      for (const SliceEdge& edge : edges[track.v]) {
        marks.push_back(
            {floor_ns(edge.at), edge.begin ? Mark::Kind::kBegin : Mark::Kind::kEnd, edge.slice});
      }
    }
    for (std::size_t i = 0; i < timeline_.num_instants(); ++i) {
      marks.push_back({floor_ns(timeline_.instant(i).at), Mark::Kind::kInstant, i});
    }
    std::stable_sort(marks.begin(), marks.end(),
                     [](const Mark& a, const Mark& b) { return a.ns < b.ns; });
    return marks;
  }

  /// Flow ids (1, 2, …) by slice: those that leave and those that arrive.
  struct SliceFlow {
    std::uint64_t slice;
    std::uint64_t id;
    bool leaves;
    auto operator<=>(const SliceFlow&) const = default;
  };
  [[nodiscard]] std::vector<SliceFlow> sorted_flows() const {
    std::vector<SliceFlow> flows;
    for (std::size_t i = 0; i < timeline_.flows().size(); ++i) {
      flows.push_back({timeline_.flows()[i].from, i + 1, true});
      flows.push_back({timeline_.flows()[i].to, i + 1, false});
    }
    std::sort(flows.begin(), flows.end());
    return flows;
  }

  void write_events() {
    flows_ = sorted_flows();
    for (const Mark& mark : sorted_marks()) {
      switch (mark.kind) {
        case Mark::Kind::kSample: write_sample(mark); break;
        case Mark::Kind::kInstant: write_instant(mark); break;
        case Mark::Kind::kBegin: write_begin(mark); break;
        case Mark::Kind::kEnd: write_end(mark); break;
      }
    }
  }

  void event(const Mark& mark, std::uint32_t flags, EventType type, std::uint64_t track,
             const std::function<void(pbf_writer&)>& fill) {
    packet(flags, [&](pbf_writer& one) {
      one.add_uint64(kPacket_timestamp, static_cast<std::uint64_t>(mark.ns));
      pbf_writer body(one, kPacket_track_event);
      body.add_enum(kEvent_type, type);
      body.add_uint64(kEvent_track_uuid, track);
      fill(body);
    });
  }

  void write_sample(const Mark& mark) {
    const Timeline::Sample& sample = timeline_.samples()[mark.index];
    event(mark, 0, kCounterSample, uuid(sample.counter),
          [&](pbf_writer& body) { body.add_int64(kEvent_counter_value, sample.value); });
  }

  void write_end(const Mark& mark) {
    event(mark, 0, kSliceEnd, uuid(timeline_.slice(mark.index).track), [](pbf_writer&) {});
  }

  void write_instant(const Mark& mark) {
    const Timeline::Instant& instant = timeline_.instant(mark.index);
    event(mark, kNeedsState, kInstantEvent, uuid(instant.track), [&](pbf_writer& body) {
      name_and_category(body, instant.name, instant.category);
      integer(body, start_key(), instant.at.value);
      annotations(body, instant.args);
    });
  }

  void write_begin(const Mark& mark) {
    const Timeline::Slice slice = timeline_.slice(mark.index);
    event(mark, kNeedsState, kSliceBegin, uuid(slice.track), [&](pbf_writer& body) {
      name_and_category(body, slice.name, slice.category);
      integer(body, start_key(), slice.start.value);
      if (!slice.is_open) integer(body, duration_key(), slice.duration.value);
      annotations(body, slice.args);
      const SliceFlow first{mark.index, 0, false};
      for (auto flow = std::lower_bound(flows_.begin(), flows_.end(), first);
           flow != flows_.end() && flow->slice == mark.index; ++flow) {
        body.add_fixed64(flow->leaves ? kEvent_flow_ids : kEvent_terminating_flow_ids, flow->id);
      }
    });
  }

  void name_and_category(pbf_writer& body, std::uint32_t name, std::uint32_t category) const {
    body.add_uint64(kEvent_name_iid, names_.of(name));
    if (!timeline_.text(category).empty())
      body.add_uint64(kEvent_category_iids, categories_.of(category));
  }

  static void integer(pbf_writer& body, std::uint32_t key, std::int64_t value) {
    pbf_writer annotation(body, kEvent_debug_annotations);
    annotation.add_uint64(kAnnotation_name_iid, key);
    annotation.add_int64(kAnnotation_int_value, value);
  }

  void annotations(pbf_writer& body, Timeline::ArgRange args) const {
    for (std::uint32_t i = args.begin; i < args.end; ++i) {
      const Timeline::StoredArg arg = timeline_.arg(i);
      if (arg.type == Timeline::StoredArg::Type::kInteger) {
        integer(body, keys_.of(arg.key), arg.bits);
        continue;
      }
      pbf_writer annotation(body, kEvent_debug_annotations);
      annotation.add_uint64(kAnnotation_name_iid, keys_.of(arg.key));
      if (arg.type == Timeline::StoredArg::Type::kDouble) {
        annotation.add_double(kAnnotation_double_value, arg.as_double());
      } else {
        annotation.add_uint64(kAnnotation_string_value_iid,
                              values_.of(static_cast<std::uint32_t>(arg.bits)));
      }
    }
  }

  const Timeline& timeline_;
  std::ostream& out_;
  std::uint32_t part_;
  InternedIds names_, categories_, keys_, values_;
  std::vector<SliceFlow> flows_;
  std::string buffer_;
};

}  // namespace

void write_perfetto(const Timeline& timeline, std::ostream& out, std::uint32_t part) {
  Writer(timeline, out, part).write();
}

}  // namespace trellis::traces
