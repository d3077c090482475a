#include "device/kernels/nki/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace trellis::device::nki {
namespace {

constexpr std::int64_t kGoodDescriptor = 512;
constexpr int kManyExecutions = 8;

/// Instructions, by line, that use few partitions of the core.
struct Narrow {
  std::int64_t executions = 0, partitions = 0;
};

void find_narrow(const std::vector<Step>& steps, std::int64_t times,
                 std::map<std::string, Narrow>& out) {
  for (const Step& s : steps) {
    if (s.loop != 0) find_narrow(s.body, times * s.count, out);
    if (s.loop != 0 || isa::name(s.opcode).starts_with("dma")) continue;
    Narrow& n = out[s.line];
    n.executions += times;
    n.partitions += times * s.operands[kDst].partitions;
  }
}

void on_descriptors(const RunReport& r, std::vector<std::string>& out) {
  for (const DescriptorSize& d : r.descriptors) {
    if (d.bytes >= kGoodDescriptor || d.count < 1024) continue;
    out.push_back(
        fmt::format("{}: {} transfers of {} bytes each; the DMA engines are at their "
                    "rate from {} bytes on: make the innermost axis contiguous",
                    d.line, d.count, d.bytes, kGoodDescriptor));
  }
}

void on_lanes(const Document& document, const RunReport& r, std::vector<std::string>& out) {
  std::map<std::string, Narrow> lines;
  find_narrow(document.body, 1, lines);
  for (const LineCost& cost : r.lines) {
    const auto found = lines.find(cost.line);
    if (found == lines.end() || found->second.executions < kManyExecutions) continue;
    const Narrow& n = found->second;
    const double lanes = static_cast<double>(n.partitions) / static_cast<double>(n.executions);
    if (lanes > 64 || to_seconds(cost.sum) < 0.1 * to_seconds(r.device_time)) continue;
    out.push_back(
        fmt::format("{}: {:.0f} of 128 partitions are used by instructions that take "
                    "{:.2f} us: put more rows on the partitions",
                    cost.line, lanes, to_microseconds(cost.sum)));
  }
}

/// The share of time in which the busiest unit works says whether units wait for one another.
void on_waiting(const sim::SystemConfig& system, const RunReport& r,
                std::vector<std::string>& out) {
  Picoseconds longest;
  for (const Picoseconds busy : r.busy) longest = std::max(longest, busy);
  const Picoseconds work = r.device_time - system.launch.program_start;
  if (work.value <= 0 || to_seconds(longest) > 0.6 * to_seconds(work)) return;
  out.push_back(fmt::format(
      "no unit is busy for more than {:.0f} % of {:.2f} us: engines and transfers wait for one "
      "another. Larger tiles, and loads that do not depend on the last store, overlap more",
      100 * to_seconds(longest) / to_seconds(work), to_microseconds(work)));
}

void on_rings(const Document& document, const RunReport& r, std::vector<std::string>& out) {
  for (const Occupation* memory : {&r.sbuf, &r.psum}) {
    if (memory->single.empty()) continue;
    const auto tile = static_cast<std::size_t>(memory->single.front());
    out.push_back(fmt::format(
        "{} tiles of loops have one slot instead of two, because {} is full "
        "(first {}): iterations do not overlap there",
        memory->single.size(), memory == &r.sbuf ? "SBUF" : "PSUM", document.tensors[tile].text()));
  }
}

bool has_fp32_product(const Document& document, const std::vector<Step>& steps) {
  return std::any_of(steps.begin(), steps.end(), [&](const Step& s) {
    if (s.loop != 0) return has_fp32_product(document, s.body);
    return s.opcode == isa::Opcode::kMatmul &&
           document.tensors[static_cast<std::size_t>(s.operands[kSrc1].tensor)].dtype ==
               isa::DType::kFp32;
  });
}

}  // namespace

std::vector<std::string> advise(const Document& document, const sim::SystemConfig& system,
                                const RunReport& report) {
  std::vector<std::string> out;
  on_descriptors(report, out);
  on_lanes(document, report, out);
  if (report.bound == "tensor" && has_fp32_product(document, document.body))
    out.push_back("products of fp32 take four passes of the array; bf16 operands take one");
  if (report.bound == "launch")
    out.push_back(fmt::format("{:.2f} us of {:.2f} us are the program's start: more work a launch",
                              to_microseconds(system.launch.program_start),
                              to_microseconds(report.device_time)));
  on_waiting(system, report, out);
  on_rings(document, report, out);
  return out;
}

}  // namespace trellis::device::nki
