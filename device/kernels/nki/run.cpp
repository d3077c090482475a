#include "device/kernels/nki/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "device/kernels/nki/advice.h"
#include "device/kernels/nki/numbers.h"

namespace trellis::device::nki {
namespace {

constexpr std::array<const char*, 7> kUnits{"tensor", "vector", "scalar", "gpsimd",
                                            "dma",    "hbm",    "launch"};

void add_lines(const sim::CoreTiming& core, const isa::Program& program, RunReport& report) {
  std::map<std::string, LineCost> lines;
  for (const sim::SegmentTiming& segment : core.segments) {
    for (const sim::KernelSlice& slice : segment.slices) {
      LineCost& cost = lines[program.kernels[slice.kernel].name];
      cost.busy[slice.track] += slice.busy;
      cost.sum += slice.busy;
      cost.bytes += slice.bytes.value;
    }
  }
  lines.erase(report.kernel);
  for (auto& [line, cost] : lines) {
    cost.line = line;
    report.lines.push_back(std::move(cost));
  }
  std::stable_sort(report.lines.begin(), report.lines.end(),
                   [](const LineCost& a, const LineCost& b) { return a.sum > b.sum; });
}

void find_bound(const sim::SystemConfig& system, RunReport& report) {
  std::array<double, 7> needed{};
  for (std::size_t e = 0; e < 4; ++e) needed[e] = to_seconds(report.busy[e]);
  for (std::size_t q = isa::kNumEngines; q < report.busy.size(); ++q)
    needed[4] = std::max(needed[4], to_seconds(report.busy[q]));
  needed[5] = static_cast<double>((report.hbm_read + report.hbm_written).value) /
              system.hbm_stack_bandwidth().value;
  needed[6] = to_seconds(system.launch.program_start);
  report.bound = kUnits[static_cast<std::size_t>(std::max_element(needed.begin(), needed.end()) -
                                                 needed.begin())];
}

void add_time(const Lowered& lowered, const sim::SystemConfig& system, RunReport& report) {
  sim::Simulator simulator(system);
  const sim::CoreTiming core = simulator.time_program(lowered.program, {});
  for (const sim::SegmentTiming& segment : core.segments) {
    report.device_time += segment.duration;
    report.hbm_read += segment.hbm_read;
    report.hbm_written += segment.hbm_written;
    for (std::size_t t = 0; t < report.busy.size(); ++t) report.busy[t] += segment.busy[t];
  }
  report.device_time += system.launch.program_start;
  find_bound(system, report);
  add_lines(core, lowered.program, report);
}

struct Sizes {
  std::map<std::int64_t, std::int64_t> counts;
  std::map<std::int64_t, std::map<std::string, std::int64_t>> lines;
};

/// Bytes that lie next to each other in HBM.
std::int64_t run_bytes(const Document& document, const Operand& o) {
  const Tensor& t = document.tensors[static_cast<std::size_t>(o.tensor)];
  std::int64_t run = 1;
  for (auto dim = o.dims.rbegin(); dim != o.dims.rend() && dim->stride == run; ++dim)
    run *= dim->count;
  return run * isa::size_bytes(t.dtype);
}

void add_descriptors(const Document& document, const std::vector<Step>& steps, std::int64_t times,
                     Sizes& sizes) {
  for (const Step& s : steps) {
    if (s.loop != 0) add_descriptors(document, s.body, times * s.count, sizes);
    if (s.loop != 0 || s.opcode != isa::Opcode::kDma) continue;
    std::int64_t run = 0;
    const Operand* chosen = nullptr;
    for (const int role : {kDst, kSrc0}) {
      const Operand& o = s.operands[static_cast<std::size_t>(role)];
      const std::int64_t bytes = run_bytes(document, o);
      if (chosen == nullptr || bytes < run) run = bytes, chosen = &o;
    }
    const Tensor& t = document.tensors[static_cast<std::size_t>(chosen->tensor)];
    const std::int64_t count =
        times * chosen->partitions * chosen->free_elements() * isa::size_bytes(t.dtype) / run;
    sizes.counts[run] += count;
    sizes.lines[run][s.line] += count;
  }
}

void add_descriptors(const Document& document, RunReport& report) {
  Sizes sizes;
  add_descriptors(document, document.body, 1, sizes);
  for (const auto& [bytes, count] : sizes.counts) {
    const auto& lines = sizes.lines[bytes];
    const auto most = std::max_element(lines.begin(), lines.end(),
                                       [](auto& a, auto& b) { return a.second < b.second; });
    report.descriptors.push_back({bytes, count, most->first});
  }
}

}  // namespace

bool RunReport::right() const {
  return refusals.empty() && mistakes.empty() &&
         std::all_of(outputs.begin(), outputs.end(), [](const OutputError& o) { return o.right; });
}

RunReport run_kernel(const Document& document, const sim::SystemConfig& system,
                     const RunOptions& options) {
  RunReport report;
  report.kernel = document.kernel;
  report.unrolled = document.unrolled;
  const isa::Limits& limits = system.chip.core.limits;
  const Lowered lowered = lower(document, system.chip.core);
  report.sbuf = lowered.placement.sbuf;
  report.psum = lowered.placement.psum;
  report.sbuf_capacity = limits.sbuf_bytes_per_partition;
  report.psum_capacity = limits.psum_bytes_per_partition;
  const Work work = work_of(document);
  report.instructions = work.instructions;
  report.products = work.products;
  report.refusals = refusals(document, lowered, limits);
  const SourceCheck check = check_source(document);
  report.source_checked = check.done;
  report.mistakes = check.mistakes;
  add_descriptors(document, report);
  if (!report.refusals.empty()) return report;
  run_numbers(document, lowered, limits, options, report);
  add_time(lowered, system, report);
  report.advice = advise(document, system, report);
  return report;
}

}  // namespace trellis::device::nki
