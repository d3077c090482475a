#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"
#include "base/process/host_memory.h"
#include "trainer/app/prepare/guarded.h"
#include "trainer/app/prepare/host_need.h"
#include "trainer/app/prepare/load_device.h"
#include "trainer/app/run/verbs.h"
#include "trainer/config/machine.h"
#include "trainer/verify/seeded_bugs.h"
#include "trainer/verify/tolerance.h"
#include "trainer/verify/verify.h"
#include "trainer/verify/verify_journal.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

std::string scientific(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value);
  return text;
}

std::string text_of(const Deviation& deviation) {
  return deviation.what + ": relative error " + scientific(deviation.error) +
         (deviation.by_share ? " (by its share of the norm)" : "") + ", tolerance " +
         scientific(deviation.tolerance);
}

void print_progress(const LayoutResult& result, int done, int of) {
  const Comparison& found = *result.comparison;
  std::cerr << "[" << done << "/" << of << "] " << result.precision << "  "
            << to_string(result.layout) << ": "
            << (result.passed() ? "equal; worst " : "DIFFERS; first ")
            << text_of(result.passed() ? found.worst : *found.first_bad) << std::endl;
}

json to_json(const VerifyRequest& request, const VerifyResult& result) {
  json layouts = json::array();
  for (const LayoutResult& one : result.layouts) {
    json entry = {{"layout", to_string(one.layout)}, {"precision", one.precision}};
    if (!one.comparison) {
      entry["illegal"] = one.why_illegal;
    } else {
      entry["equal"] = one.passed();
      entry["compared"] = one.comparison->num_compared;
      entry["compared_by_share"] = one.comparison->num_by_share;
      entry["worst"] = to_json(one.comparison->worst);
      if (one.comparison->first_bad) entry["first_bad"] = to_json(*one.comparison->first_bad);
      if (one.comparison->first_bad_tensor)
        entry["first_bad_tensor"] = to_json(*one.comparison->first_bad_tensor);
    }
    layouts.push_back(std::move(entry));
  }
  json document = {{"schema", "trellis.verify/1"},
                   {"device", request.device},
                   {"ranks", request.ranks},
                   {"vocab_size", result.vocab_size},
                   {"derived_tolerances",
                    {{"smallest", result.derived.smallest},
                     {"largest", result.derived.largest},
                     {"times_the_noise", result.derived.times_the_noise},
                     {"capped", result.derived.num_capped}}},
                   {"failed", result.num_failed()},
                   {"layouts", std::move(layouts)}};
  if (!result.why_fp64_only.empty()) document["why_fp64_only"] = result.why_fp64_only;
  return document;
}

void print_worst(const VerifyResult& result, const std::string& precision) {
  const LayoutResult* worst = nullptr;
  int by_share = 0;
  for (const LayoutResult& one : result.layouts) {
    if (!one.comparison || one.precision != precision) continue;
    by_share = std::max(by_share, one.comparison->num_by_share);
    const auto excess = [](const LayoutResult& layout) {
      return layout.comparison->worst.error / layout.comparison->worst.tolerance;
    };
    if (worst == nullptr || excess(one) > excess(*worst)) worst = &one;
  }
  if (worst == nullptr) return;
  std::cout << precision << ": worst " << text_of(worst->comparison->worst) << " ("
            << to_string(worst->layout) << "); " << by_share << " of "
            << worst->comparison->num_compared
            << " numbers nearly vanish and are measured against their share of the norm\n";
}

/// Where the tolerances of the configured precision come from.
void print_derived(const VerifyResult& result) {
  const DerivedTolerances& derived = result.derived;
  if (derived.largest == 0) return;
  std::cout << result.precision << ": tolerances " << scientific(derived.smallest) << " to "
            << scientific(derived.largest) << ": " << fmt::format("{:.2f}", derived.times_the_noise)
            << " × the noise of rounding, number by number, measured on " << kRoundingRuns
            << " runs of one rank against fp64; at least one rounding, at most "
            << kLargestTolerance << " (" << derived.num_capped << " numbers)\n";
}

void print_failure(const LayoutResult& one) {
  const Comparison& found = *one.comparison;
  std::cout << "DIFFERS  " << one.precision << "  " << to_string(one.layout) << ": "
            << found.num_bad << " of " << found.num_compared << "; first "
            << text_of(*found.first_bad);
  const auto& tensor = found.first_bad_tensor;
  if (tensor && tensor->what != found.first_bad->what)
    std::cout << "; first tensor " << text_of(*tensor);
  std::cout << (tensor ? "; layer " + tensor->layer : "") << "\n";
}

/// The worst of each precision, then what failed; what is not legal is counted.
void print_summary(const VerifyRequest& request, const VerifyResult& result, double seconds) {
  const int illegal = static_cast<int>(result.layouts.size()) - result.num_run();
  std::cout << result.num_run() << " runs on " << request.ranks << " " << request.device
            << " ranks against one CPU rank, " << request.steps << " steps each, in "
            << std::lround(seconds) << " s: " << result.num_run() - result.num_failed()
            << " equal, " << result.num_failed() << " differ; " << illegal
            << " layouts are not legal for this configuration\n"
            << "vocabulary " << result.vocab_size << " rows in every layout\n";
  print_worst(result, "fp64");
  if (result.precision != "fp64") print_worst(result, result.precision);
  print_derived(result);
  if (!result.why_fp64_only.empty())
    std::cout << result.precision << ": not compared: " << result.why_fp64_only << "\n";
  for (const LayoutResult& one : result.layouts) {
    if (!one.passed()) print_failure(one);
  }
}

void check_ranks_fit(const VerifyRequest& request, const RunConfig& config) {
  const int cores = load_machine(config, request.instance, {}).logical_cores_per_node();
  if (request.ranks <= cores) return;
  throw ConfigError("--ranks " + std::to_string(request.ranks) + ": a " + request.instance +
                    " has " + std::to_string(cores) +
                    " logical cores: lower it, or choose a larger --instance");
}

/// On the CPU as many layouts at a time as there are host threads, each with its share of them:
/// ranks that wait for each other leave a core to another layout. An emulated device is one
/// world's.
void share_host(const DeviceChoice& device, const RunConfig& config, VerifyMachine& machine) {
  runtime::WorldOptions& world = machine.world;
  if (world.plugin != nullptr || !computes_in_host_memory(device)) return;
  const int threads = world.host_threads > 0
                          ? world.host_threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  // A lower bound of what training needs, in this precision; fp64 and the gathered numbers make it
  // four times as much.
  const std::int64_t of_layout = 4 * host_need(config, config.world_size()).total();
  const std::int64_t fitting =
      available_host_memory().available_bytes / std::max<std::int64_t>(of_layout, 1);
  machine.layouts_at_once = static_cast<int>(std::clamp<std::int64_t>(fitting, 1, threads));
  world.host_threads = threads / machine.layouts_at_once;
}

VerifyMachine machine_of(const VerifyRequest& request, RunConfig config) {
  DeviceChoice device = device_choice(request);
  device.record = false;
  if (is_emulated(device)) check_ranks_fit(request, config);
  config.trainer.devices = request.ranks;
  use_machine(device, config);
  VerifyMachine machine;
  machine.hardware = config.hardware;
  machine.world.device_type = request.device;
  machine.world.host_threads = request.host_threads;
  machine.world.backend = request.backend;
  machine.world.plugin = load_device(device, config);
  share_host(device, config, machine);
  return machine;
}

int run(const VerifyRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  Activity activity("comparing layouts with one rank");
  const auto progress = [&activity](const LayoutResult& layout, int done, int of) {
    print_progress(layout, done, of);
    activity.count(done, of);
    note_written();
  };
  const VerifyResult result = verify(
      request, [&](const RunConfig& config) { return machine_of(request, config); }, progress);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (request.json) {
    std::cout << to_json(request, result).dump(1) << std::endl;
  } else {
    print_summary(request, result, seconds);
  }
  return static_cast<int>(result.num_failed() > 0 ? ExitCode::kParity : ExitCode::kOk);
}

}  // namespace
int run_verify(const VerifyRequest& request) {
  return guarded([&] {
    if (request.merge.empty()) return run(request);
    VerifyRequest merged = merged_request(request.merge);
    merged.json = request.json;
    return run(merged);
  });
}

}  // namespace trellis::trainer
