#include "traces/text_writer.h"

#include <algorithm>
#include <charconv>
#include <ostream>
#include <string>
#include <tuple>

namespace trellis::traces {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string number(double value) {
  char buffer[32];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

/// A line with what it is sorted by: time, place on the screen, kind, then the text itself.
struct Line {
  std::int64_t at = 0;
  std::size_t place = 0;
  int kind = 0;
  std::int64_t longest_first = 0;
  std::string text;
};

class Lines {
 public:
  explicit Lines(const Timeline& timeline) : timeline_(timeline), place_(timeline.tracks().size()) {
    const std::vector<TrackId> order = timeline.tracks_in_order();
    for (std::size_t i = 0; i < order.size(); ++i) place_[order[i].v] = i;
  }

  std::vector<Line> all() {
    for (std::size_t i = 0; i < timeline_.num_slices(); ++i) add_slice(timeline_.slice(i));
    for (std::size_t i = 0; i < timeline_.num_instants(); ++i) add_instant(timeline_.instant(i));
    for (const Timeline::Sample& sample : timeline_.samples()) add_sample(sample);
    for (const Timeline::Flow& flow : timeline_.flows()) add_flow(flow);
    // Stable: samples of one counter at one time keep their order, the last one holds.
    std::stable_sort(lines_.begin(), lines_.end(), [](const Line& a, const Line& b) {
      const auto key = [](const Line& l) {
        return std::tie(l.at, l.place, l.kind, l.longest_first);
      };
      if (key(a) != key(b) || a.kind == kSample) return key(a) < key(b);
      return a.text < b.text;
    });
    return std::move(lines_);
  }

 private:
  static constexpr int kSlice = 0, kInstant = 1, kFlow = 2, kSample = 3;

  [[nodiscard]] std::string track(TrackId id) const {
    const Timeline::Track& track = timeline_.tracks()[id.v];
    return quoted(timeline_.processes()[track.process.v].name) + "/" + quoted(track.name);
  }

  [[nodiscard]] std::string category_and_args(std::uint32_t category,
                                              Timeline::ArgRange args) const {
    std::string out;
    if (!timeline_.text(category).empty()) out += " cat=" + quoted(timeline_.text(category));
    for (std::uint32_t i = args.begin; i < args.end; ++i) {
      const Timeline::StoredArg arg = timeline_.arg(i);
      out += " " + timeline_.text(arg.key) + "=";
      switch (arg.type) {
        case Timeline::StoredArg::Type::kInteger: out += std::to_string(arg.bits); break;
        case Timeline::StoredArg::Type::kDouble: out += number(arg.as_double()); break;
        case Timeline::StoredArg::Type::kText:
          out += quoted(timeline_.text(static_cast<std::uint32_t>(arg.bits)));
          break;
      }
    }
    return out;
  }

  [[nodiscard]] std::string head(const Timeline::Slice& slice) const {
    return std::to_string(slice.start.value) + " " + track(slice.track) + " " +
           quoted(timeline_.text(slice.name));
  }

  void add_slice(const Timeline::Slice& slice) {
    lines_.push_back({slice.start.value, place_[slice.track.v], kSlice, -slice.duration.value,
                      "slice " + std::to_string(slice.start.value) + " " +
                          (slice.is_open ? "open" : "+" + std::to_string(slice.duration.value)) +
                          " " + track(slice.track) + " " + quoted(timeline_.text(slice.name)) +
                          category_and_args(slice.category, slice.args)});
  }

  void add_instant(const Timeline::Instant& instant) {
    lines_.push_back({instant.at.value, place_[instant.track.v], kInstant, 0,
                      "instant " + std::to_string(instant.at.value) + " " + track(instant.track) +
                          " " + quoted(timeline_.text(instant.name)) +
                          category_and_args(instant.category, instant.args)});
  }

  void add_sample(const Timeline::Sample& sample) {
    const Timeline::Counter& counter = timeline_.counters()[sample.counter.v];
    lines_.push_back({sample.at.value, place_.size() + sample.counter.v, kSample, 0,
                      "counter " + std::to_string(sample.at.value) + " " +
                          quoted(timeline_.processes()[counter.process.v].name) + "/" +
                          quoted(counter.name) + " " + std::to_string(sample.value) + " " +
                          counter.unit});
  }

  void add_flow(const Timeline::Flow& flow) {
    const Timeline::Slice from = timeline_.slice(flow.from);
    lines_.push_back({from.start.value, place_[from.track.v], kFlow, 0,
                      "flow " + head(from) + " -> " + head(timeline_.slice(flow.to))});
  }

  const Timeline& timeline_;
  std::vector<std::size_t> place_;  ///< by track
  std::vector<Line> lines_;
};

}  // namespace

void write_text(const Timeline& timeline, std::ostream& out) {
  if (timeline.dropped() != 0) out << "warning " << timeline.warning() << '\n';
  for (const Line& line : Lines(timeline).all()) out << line.text << '\n';
}

}  // namespace trellis::traces
