#include "device/kernels/nki/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

namespace trellis::device::nki {
namespace {

using nlohmann::json;

constexpr std::size_t kLinesShown = 12;

std::string track_name(std::size_t track) {
  if (track < isa::kNumEngines) return std::string(isa::name(static_cast<isa::Engine>(track)));
  return "dma " + std::string(isa::name(static_cast<isa::DmaQueue>(track - isa::kNumEngines)));
}

void line(std::string& out, std::string_view label, const std::string& value) {
  out += fmt::format("  {:<14}{}\n", label, value);
}

void numbers_text(const RunReport& r, std::string& out) {
  for (const OutputError& o : r.outputs) {
    line(out, o.right ? "right" : "WRONG",
         fmt::format("{} {}: relative error {:.3g} of {:.3g} allowed", o.name, isa::name(o.dtype),
                     o.relative, o.tolerance));
    line(out, "",
         fmt::format("largest at {}: {:.9g}, expected {:.9g} ({:.3g} of the largest value, {:.3g} "
                     "ulp)",
                     o.element, o.got, o.want, o.largest, o.ulp));
  }
  if (!r.has_numbers && r.refusals.empty()) line(out, "numbers", "none: " + r.no_numbers);
  if (r.has_numbers && r.outputs.empty())
    line(out, "numbers", "executed; no reference to compare with");
  for (const Refusal& refusal : r.refusals)
    line(out, "refused", refusal.line + ": " + refusal.text);
  for (const Mistake& m : r.mistakes) line(out, "mistake", fmt::format("{}: {}", m.line, m.text));
  if (r.mistakes.empty() && r.refusals.empty())
    line(out, "mistakes",
         r.source_checked ? (r.has_interleavings ? "none, in shuffled interleavings either"
                                                 : "none; interleavings were not shuffled")
                          : "not looked for: too many instructions");
}

void time_text(const RunReport& r, std::string& out) {
  const double us = to_microseconds(r.device_time);
  line(out, "time",
       fmt::format("{:.2f} us on the device, bounded by {}; {} instructions", us, r.bound,
                   r.instructions));
  for (std::size_t t = 0; t < r.busy.size(); ++t) {
    if (r.busy[t].value > 0)
      line(out, "  " + track_name(t),
           fmt::format("{:>12.2f} us {:>6.1f} %", to_microseconds(r.busy[t]),
                       100 * to_microseconds(r.busy[t]) / us));
  }
  line(out, "HBM", fmt::format("read {} bytes, written {}", r.hbm_read.value, r.hbm_written.value));
  out += "  cost by line            us    of which\n";
  for (std::size_t i = 0; i < r.lines.size() && i < kLinesShown; ++i) {
    const LineCost& cost = r.lines[i];
    std::vector<std::string> parts;
    for (std::size_t t = 0; t < cost.busy.size(); ++t) {
      if (cost.busy[t].value > 0)
        parts.push_back(fmt::format("{} {:.2f}", track_name(t), to_microseconds(cost.busy[t])));
    }
    out += fmt::format("    {:<16}{:>10.2f}    {}\n", cost.line, to_microseconds(cost.sum),
                       fmt::join(parts, ", "));
  }
  if (r.lines.size() > kLinesShown)
    out += fmt::format("    and {} lines more (--json has all)\n", r.lines.size() - kLinesShown);
}

void memory_text(const RunReport& r, std::string& out) {
  line(out, "SBUF",
       fmt::format("{} of {} bytes a partition, most at {}", r.sbuf.alive, r.sbuf_capacity,
                   r.sbuf.line));
  if (r.psum.alive > 0)
    line(out, "PSUM",
         fmt::format("{} of {} bytes a partition, most at {}", r.psum.alive, r.psum_capacity,
                     r.psum.line));
  std::vector<std::string> sizes;
  for (const DescriptorSize& d : r.descriptors)
    sizes.push_back(fmt::format("{} x {} B", d.count, d.bytes));
  if (!sizes.empty()) line(out, "transfers", fmt::format("{}", fmt::join(sizes, ", ")));
}

json occupation(const Occupation& o, std::int64_t capacity) {
  return {{"bytes", o.alive},
          {"capacity", capacity},
          {"line", o.line},
          {"single_slots", o.single.size()}};
}

json outputs_json(const RunReport& r) {
  json out = json::array();
  for (const OutputError& o : r.outputs)
    out.push_back({{"name", o.name},
                   {"dtype", isa::name(o.dtype)},
                   {"relative_error", o.relative},
                   {"largest_error", o.largest},
                   {"ulp", o.ulp},
                   {"element", o.element},
                   {"got", o.got},
                   {"expected", o.want},
                   {"tolerance", o.tolerance},
                   {"right", o.right}});
  return out;
}

}  // namespace

std::string report_text(const RunReport& r) {
  std::string out = fmt::format("{} on one core of {}\n", r.kernel, r.instance);
  if (!r.unrolled.empty()) line(out, "unrolled", fmt::format("{}", fmt::join(r.unrolled, ", ")));
  numbers_text(r, out);
  if (r.refusals.empty()) time_text(r, out);
  memory_text(r, out);
  for (const std::string& advice : r.advice) line(out, "advice", advice);
  return out;
}

json report_json(const RunReport& r) {
  json busy = json::object(), lines = json::array(), hazards = json::array(),
       refusals = json::array(), sizes = json::array();
  for (std::size_t t = 0; t < r.busy.size(); ++t) busy[track_name(t)] = to_microseconds(r.busy[t]);
  for (const LineCost& cost : r.lines) {
    json parts = json::object();
    for (std::size_t t = 0; t < cost.busy.size(); ++t) {
      if (cost.busy[t].value > 0) parts[track_name(t)] = to_microseconds(cost.busy[t]);
    }
    lines.push_back({{"line", cost.line},
                     {"time_us", to_microseconds(cost.sum)},
                     {"busy_us", parts},
                     {"dma_bytes", cost.bytes}});
  }
  for (const Mistake& m : r.mistakes)
    hazards.push_back({{"kind", m.kind}, {"line", m.line}, {"text", m.text}});
  for (const Refusal& f : r.refusals) refusals.push_back({{"line", f.line}, {"text", f.text}});
  for (const DescriptorSize& d : r.descriptors)
    sizes.push_back({{"bytes", d.bytes}, {"count", d.count}, {"line", d.line}});
  return {{"schema", "trellis.kernel_run/1"},
          {"kernel", r.kernel},
          {"instance", r.instance},
          {"right", r.right()},
          {"numbers", r.has_numbers ? "executed" : r.no_numbers},
          {"interleavings_shuffled", r.has_interleavings},
          {"mistakes_looked_for", r.source_checked},
          {"unrolled", r.unrolled},
          {"outputs", outputs_json(r)},
          {"hazards", hazards},
          {"refusals", refusals},
          {"device_time_us", to_microseconds(r.device_time)},
          {"bound_by", r.bound},
          {"busy_us", busy},
          {"hbm_read_bytes", r.hbm_read.value},
          {"hbm_written_bytes", r.hbm_written.value},
          {"instructions", r.instructions},
          {"products", r.products},
          {"lines", lines},
          {"transfers", sizes},
          {"sbuf", occupation(r.sbuf, r.sbuf_capacity)},
          {"psum", occupation(r.psum, r.psum_capacity)},
          {"advice", r.advice}};
}

}  // namespace trellis::device::nki
