#include "device/kernels/kernel_report.h"

#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "device/kernels/catalogue.h"

namespace trellis::device {
namespace {

std::string track_name(int track) {
  if (track < sim::isa::kNumEngines)
    return std::string(sim::isa::name(static_cast<sim::isa::Engine>(track)));
  return "dma " + std::string(sim::isa::name(
                      static_cast<sim::isa::DmaQueue>(track - sim::isa::kNumEngines)));
}

std::string sizes_text(const KernelRequest& request) {
  std::vector<std::string> words;
  for (const KernelParameter& p : find_kernel(request.name).parameters)
    words.push_back(fmt::format("{}={}", p.name, request.sizes.at(p.name)));
  return fmt::format("{}", fmt::join(words, " "));
}

std::string bytes_text(Bytes b) {
  if (b.value >= 10'000'000'000)
    return fmt::format("{:.2f} GB", static_cast<double>(b.value) * 1e-9);
  if (b.value >= 10'000'000) return fmt::format("{:.2f} MB", static_cast<double>(b.value) * 1e-6);
  return fmt::format("{:.1f} kB", static_cast<double>(b.value) * 1e-3);
}

void line(std::string& out, std::string_view label, const std::string& value) {
  out += fmt::format("  {:<16}{}\n", label, value);
}

}  // namespace

std::string timing_text(const KernelTiming& t, const std::string& instance) {
  const KernelRequest& r = t.request;
  const double us = to_microseconds(t.device_time);
  std::string out = fmt::format("{} {} {}{} on {} core{} of {}\n", r.name, r.dtype, sizes_text(r),
                                r.variant.empty() ? "" : " variant=" + r.variant, r.cores,
                                r.cores == 1 ? "" : "s", instance);
  line(out, "time",
       fmt::format("{:.2f} us in a benchmark's loop, of which {:.2f} us on the device",
                   to_microseconds(t.benchmark_time), us));
  line(out, "MFU",
       fmt::format(
           "{:.2f} %, on the device {:.2f} %, of {:.2f} TFLOPS ({} peak, {} core{}); {:.4g} GFLOP",
           100 * t.benchmark_mfu, 100 * t.mfu, t.peak.value * 1e-12, r.dtype, r.cores,
           r.cores == 1 ? "" : "s", static_cast<double>(t.flops) * 1e-9));
  line(out, "bounded by",
       fmt::format("{} (evidence of its numbers: {})", name(t.bound), sim::name(t.evidence)));
  line(out, "at least",
       fmt::format("{:.2f} us compute, {:.2f} us memory ({})", to_microseconds(t.compute_bound),
                   to_microseconds(t.memory_bound), bytes_text(t.operand_bytes)));
  line(out, "moved",
       fmt::format("DMA {}   HBM read {}, written {}", bytes_text(t.dma_bytes),
                   bytes_text(t.hbm_read), bytes_text(t.hbm_written)));
  out += "  busy            us       share of device time\n";
  for (int track = 0; track < sim::kNumTracks; ++track) {
    const Picoseconds busy = t.busy[static_cast<std::size_t>(track)];
    if (busy.value > 0)
      out += fmt::format("    {:<12}{:>12.2f} {:>8.1f} %\n", track_name(track),
                         to_microseconds(busy), 100 * to_microseconds(busy) / us);
  }
  if (!t.estimated.empty())
    line(out, "estimated",
         fmt::format("{}: costed by passes over their operands", fmt::join(t.estimated, ", ")));
  return out;
}

nlohmann::json timing_json(const KernelTiming& t, const std::string& instance) {
  nlohmann::json busy = nlohmann::json::object();
  for (int track = 0; track < sim::kNumTracks; ++track)
    busy[track_name(track)] = to_microseconds(t.busy[static_cast<std::size_t>(track)]);
  return {{"schema", "trellis.kernel/1"},
          {"instance", instance},
          {"kernel", t.request.name},
          {"variant", t.request.variant},
          {"dtype", t.request.dtype},
          {"sizes", t.request.sizes},
          {"cores", t.request.cores},
          {"time_us", to_microseconds(t.benchmark_time)},
          {"device_time_us", to_microseconds(t.device_time)},
          {"flops", t.flops},
          {"mfu", t.benchmark_mfu},
          {"device_mfu", t.mfu},
          {"mfu_denominator_tflops", t.peak.value * 1e-12},
          {"bf16_peak_tflops", t.peak_bf16.value * 1e-12},
          {"bound_by", name(t.bound)},
          {"evidence", sim::name(t.evidence)},
          {"estimated_operations", t.estimated},
          {"compute_bound_us", to_microseconds(t.compute_bound)},
          {"memory_bound_us", to_microseconds(t.memory_bound)},
          {"operand_bytes", t.operand_bytes.value},
          {"dma_bytes", t.dma_bytes.value},
          {"hbm_read_bytes", t.hbm_read.value},
          {"hbm_written_bytes", t.hbm_written.value},
          {"busy_us", busy}};
}

std::string catalogue_text() {
  std::string out;
  for (const KernelSpec& spec : kernel_catalogue()) {
    std::vector<std::string> dtypes;
    for (auto d : spec.dtypes) dtypes.emplace_back(dtype_name(d));
    out += fmt::format("{:<26}{}\n{:<26}{}\n", spec.name, spec.formula, "", spec.purpose);
    for (const KernelParameter& p : spec.parameters)
      out += fmt::format("    {:<22}{} ({})\n", p.name, p.meaning, p.value);
    out += fmt::format("    {:<22}{}\n", "dtype", fmt::join(dtypes, ", "));
    if (spec.variants.size() > 1)
      out += fmt::format("    {:<22}{}\n", "variant", fmt::join(spec.variants, ", "));
  }
  return out + "The first dtype and variant and the numbers in parentheses are the defaults.\n";
}

nlohmann::json catalogue_json() {
  nlohmann::json kernels = nlohmann::json::array();
  for (const KernelSpec& spec : kernel_catalogue()) {
    nlohmann::json parameters = nlohmann::json::array(), dtypes = nlohmann::json::array();
    for (const KernelParameter& p : spec.parameters)
      parameters.push_back(
          {{"name", p.name}, {"default", p.value}, {"flag", p.flag}, {"meaning", p.meaning}});
    for (auto d : spec.dtypes) dtypes.push_back(dtype_name(d));
    kernels.push_back({{"name", spec.name},
                       {"formula", spec.formula},
                       {"purpose", spec.purpose},
                       {"parameters", parameters},
                       {"dtypes", dtypes},
                       {"variants", spec.variants},
                       {"split_over_cores_by", spec.split}});
  }
  return {{"schema", "trellis.kernels/1"}, {"kernels", kernels}};
}

traces::Timeline kernel_timeline(const KernelTiming& t) {
  traces::Timeline timeline;
  for (std::size_t core = 0; core < t.cores.size(); ++core) {
    const traces::ProcessId process =
        timeline.add_process("core " + std::to_string(core), static_cast<int>(core));
    std::array<traces::TrackId, sim::kNumTracks> tracks;
    for (int i = 0; i < sim::kNumTracks; ++i)
      tracks[static_cast<std::size_t>(i)] = timeline.add_track(process, track_name(i), i);
    Picoseconds start;
    for (const sim::SegmentTiming& segment : t.cores[core].segments) {
      for (const sim::KernelSlice& slice :
           segment.pieces.empty() ? segment.slices : segment.pieces) {
        const std::array<traces::Arg, 2> args{traces::Arg{"busy_ps", slice.busy.value},
                                              traces::Arg{"bytes", slice.bytes.value}};
        timeline.slice(tracks[slice.track], t.phases.at(slice.kernel), "kernel",
                       start + slice.start, slice.end - slice.start, args);
      }
      start += segment.duration;
    }
  }
  return timeline;
}

}  // namespace trellis::device
