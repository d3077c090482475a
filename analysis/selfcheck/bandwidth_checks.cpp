#include <fmt/format.h>

#include <map>

#include "analysis/selfcheck/sanity_check.h"
#include "analysis/selfcheck/workloads.h"

namespace trellis::analysis {
namespace {

using device::KernelBound;
using sim::CollectiveKind;

struct KernelCase {
  std::string instance;
  device::KernelRequest request;
};

std::vector<KernelCase> kernel_cases() {
  const device::KernelRequest matmul{.name = "matmul",
                                     .sizes = {{"m", 1024}, {"k", 1024}, {"n", 1024}},
                                     .dtype = "bf16",
                                     .variant = "",
                                     .cores = 1};
  const device::KernelRequest add{
      .name = "add", .sizes = {{"elements", 1 << 22}}, .dtype = "bf16", .variant = "", .cores = 1};
  const device::KernelRequest softmax{.name = "softmax",
                                      .sizes = {{"rows", 1024}, {"columns", 4096}},
                                      .dtype = "fp32",
                                      .variant = "",
                                      .cores = 1};
  std::vector<KernelCase> cases;
  for (const char* instance : {"trn1.32xlarge", "trn2.48xlarge"}) {
    for (const auto& request : {matmul, add, softmax}) cases.push_back({instance, request});
  }
  return cases;
}

std::vector<CollectiveCase> collective_cases() {
  std::vector<CollectiveCase> cases;
  for (const std::int64_t bytes : {64 * 1024L, 16 * kMiB, 256 * kMiB}) {
    cases.push_back({"trn1.32xlarge", 1, 32, CollectiveKind::kAllReduce, bytes});
    cases.push_back({"trn1.32xlarge", 2, 64, CollectiveKind::kAllReduce, bytes});
    cases.push_back({"trn2.48xlarge", 1, 64, CollectiveKind::kAllGather, bytes});
  }
  return cases;
}

/// One workload with some hardware numbers changed → its time, and what to call it.
struct Workload {
  std::string name, instance;
  std::function<Picoseconds(const std::vector<std::string>&)> time;
};

std::vector<Workload> workloads() {
  std::vector<Workload> all;
  for (const KernelCase& c : kernel_cases()) {
    all.push_back({c.request.name + " on " + c.instance, c.instance, [c](const auto& overrides) {
                     return run_kernel(c.instance, c.request, overrides).device_time;
                   }});
  }
  for (const CollectiveCase& c : collective_cases()) {
    all.push_back({c.describe(), c.instance,
                   [c](const auto& overrides) { return run_collective(c, overrides).time; }});
  }
  return all;
}

/// Times of every workload with one rate scaled, compared with the plain ones; `wrong` says when
/// that is a contradiction.
Finding with_every_rate(double factor,
                        const std::function<bool(Picoseconds plain, Picoseconds changed)>& wrong) {
  int tried = 0;
  for (const Workload& work : workloads()) {
    const Picoseconds plain = work.time({});
    for (const sim::Parameter& rate : rate_parameters(work.instance)) {
      const Picoseconds changed = work.time({scaled(rate, factor)});
      ++tried;
      if (wrong(plain, changed))
        return {false, fmt::format("{}: {} ps, with {} {} ps", work.name, plain.value,
                                   scaled(rate, factor), changed.value)};
    }
  }
  return {true, fmt::format("{} combinations of a workload and a rate", tried)};
}

Finding doubling_never_slows() {
  // DMA rings share their engines packet by packet: one that comes earlier may meet another turn,
  // half a percent at most.
  return with_every_rate(2, [](Picoseconds plain, Picoseconds changed) {
    return changed.value > plain.value + plain.value / 200;
  });
}

Finding halving_never_speeds_up() {
  return with_every_rate(0.5, [](Picoseconds plain, Picoseconds changed) {
    return changed.value < plain.value - plain.value / 200;
  });  // as above
}

/// The rate of the unit that a kernel's report names as its bound.
const std::map<KernelBound, std::string>& rate_of_bound() {
  static const std::map<KernelBound, std::string> rates = {
      {KernelBound::kTensor, "core.tensor.clock"}, {KernelBound::kVector, "core.vector.clock"},
      {KernelBound::kScalar, "core.scalar.clock"}, {KernelBound::kGpSimd, "core.gpsimd.clock"},
      {KernelBound::kDma, "core.dma.engine_rate"}, {KernelBound::kHbm, "chip.hbm_bandwidth"}};
  return rates;
}

const sim::Parameter* find(const std::vector<sim::Parameter>& rates, const std::string& key) {
  for (const auto& rate : rates) {
    if (rate.key == key) return &rate;
  }
  return nullptr;
}

/// Half the rate of the unit that bounds a kernel must show; half the rate of a unit that does
/// nothing must not.
Finding halving_matters_where_the_report_says_so() {
  std::string detail;
  for (const KernelCase& c : kernel_cases()) {
    const device::KernelTiming plain = run_kernel(c.instance, c.request);
    const auto rates = rate_parameters(c.instance);
    for (const auto& [bound, key] : rate_of_bound()) {
      const sim::Parameter* rate = find(rates, key);
      if (rate == nullptr) return {false, key + " is no rate of " + c.instance};
      const Picoseconds changed =
          run_kernel(c.instance, c.request, {scaled(*rate, 0.5)}).device_time;
      const double slower =
          static_cast<double>(changed.value) / static_cast<double>(plain.device_time.value) - 1;
      if (bound == plain.bound && slower < 0.1)
        return {false, fmt::format("{} on {} is bounded by {}, but half of {} costs {:.1f} %",
                                   c.request.name, c.instance, name(bound), key, 100 * slower)};
      const bool engine = bound <= KernelBound::kGpSimd;
      if (engine && plain.busy[static_cast<std::size_t>(bound)].value == 0 &&
          changed != plain.device_time) {
        return {false, fmt::format("{} on {} does not use {}, but half of {} costs {:.1f} %",
                                   c.request.name, c.instance, name(bound), key, 100 * slower)};
      }
      if (bound == plain.bound)
        detail += fmt::format("{}{} on {}: {} +{:.0f} %", detail.empty() ? "" : ", ",
                              c.request.name, c.instance, name(bound), 100 * slower);
    }
  }
  return {true, detail};
}

/// Rates of the network between nodes mean nothing inside one node.
Finding unused_links_do_not_matter() {
  const CollectiveCase inside{"trn2.48xlarge", 1, 64, CollectiveKind::kAllReduce, 64 * kMiB};
  const Picoseconds plain = run_collective(inside).time;
  for (const sim::Parameter& rate : rate_parameters(inside.instance)) {
    if (rate.key.find("efa") == std::string::npos) continue;
    if (run_collective(inside, {scaled(rate, 0.5)}).time != plain)
      return {false, "half of " + rate.key + " changes a collective inside one node"};
  }
  CollectiveCase across = inside;
  across.nodes = 2;
  across.ranks = 128;
  const Picoseconds both = run_collective(across).time;
  for (const sim::Parameter& rate : rate_parameters(inside.instance)) {
    if (rate.key.find("efa") == std::string::npos) continue;
    if (run_collective(across, {scaled(rate, 0.5)}).time > both)
      return {true, "half of " + rate.key + " slows two nodes and leaves one alone"};
  }
  return {false, "half of EFA does not slow an all-reduce over two nodes"};
}

}  // namespace

std::vector<SanityCheck> bandwidth_checks() {
  return {
      {"faster-helps", "doubling any rate never slows anything", doubling_never_slows},
      {"slower-hurts", "halving any rate never speeds anything up", halving_never_speeds_up},
      {"bound-is-bound",
       "halving a rate matters where the report names it as the bound, and not where it is idle",
       halving_matters_where_the_report_says_so},
      {"unused-links", "a link that carries nothing does not matter", unused_links_do_not_matter},
  };
}

}  // namespace trellis::analysis
