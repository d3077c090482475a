#include <chrono>
#include <iostream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/process/host_memory.h"
#include "trainer/app/prepare/guarded.h"
#include "trainer/app/prepare/host_need.h"
#include "trainer/app/prepare/load_device.h"
#include "trainer/app/run/verbs.h"
#include "trainer/verify/resume_check.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

json to_json(const RecordDifference& difference) {
  return {
      {"step", difference.step},     {"as_resumed", difference.resumed},
      {"item", difference.item},     {"rank", difference.rank < 0 ? json() : json(difference.rank)},
      {"tensor", difference.tensor}, {"expected", difference.expected},
      {"got", difference.got}};
}

json to_json(const ResumeCheckRequest& request, const ResumeCheckResult& result) {
  json document = {{"schema", "trellis.resume_check/1"},
                   {"device", request.device},
                   {"steps", request.steps},
                   {"cuts", request.cuts},
                   {"after_cut", request.after_cut},
                   {"bit_by_bit", result.exact},
                   {"equal", result.equal()},
                   {"compared", result.compared},
                   {"first_difference", result.first ? to_json(*result.first) : json()}};
  for (const auto& [step, hash] : result.hashes)
    document["hashes"].push_back({{"step", step}, {"xxh3_128", hash.to_string()}});
  if (result.worst)
    document["closeness"] = {{"what", result.worst->what},
                             {"error", result.worst->error},
                             {"tolerance", result.tolerance}};
  return document;
}

void print(const ResumeCheckRequest& request, const ResumeCheckResult& result, double seconds) {
  std::cout << fmt::format(
      "{} steps, cut after {} and resumed{}, in {:.0f} s: {}\n", request.steps,
      fmt::join(request.cuts, ", "),
      request.after_cut.empty() ? "" : fmt::format(" with {}", fmt::join(request.after_cut, " ")),
      seconds, result.equal() ? "equal" : "DIFFERS");
  if (result.first) {
    std::cout << "first difference " << terminal_line(result.first->text()) << "\n";
  } else if (result.exact) {
    std::cout << fmt::format(
        "{} hashes and numbers are the same: weights, masters, optimizer states, averages, step, "
        "schedule, random state, samples, callbacks, losses\n",
        result.compared);
  }
  if (result.worst)
    std::cout << fmt::format(
        "another layout: the samples of each global batch {}; worst {}: relative error {:.1e}, "
        "tolerance {:.1e}\n",
        result.first ? "differ" : "are the same", terminal_line(result.worst->what),
        result.worst->error, result.tolerance);
}

runtime::WorldOptions world_of(const ResumeCheckRequest& request, RunConfig& config) {
  DeviceChoice device = device_choice(request);
  device.nodes = config.trainer.num_nodes;
  device.record = false;
  use_machine(device, config);
  if (computes_in_host_memory(device)) {
    const HostMemory memory = available_host_memory();
    check_host_memory(config, std::max(1, request.host_threads), memory.available_bytes,
                      memory.limit);
  }
  return world_on(device, config, request.host_threads);
}

int run(const ResumeCheckRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  Activity activity("reading configuration and data");
  std::string running;
  const auto progress = [&](const std::string& name, std::int64_t done, std::int64_t of) {
    if (name != running) activity.now(name);
    running = name;
    activity.count(done, of);
  };
  const ResumeCheckResult result =
      resume_check(request, [&](RunConfig& config) { return world_of(request, config); }, progress);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (request.json) {
    std::cout << to_json(request, result).dump(1) << std::endl;
  } else {
    print(request, result, seconds);
  }
  return static_cast<int>(result.equal() ? ExitCode::kOk : ExitCode::kParity);
}

}  // namespace
int run_resume_check(const ResumeCheckRequest& request) {
  return guarded([&] { return run(request); });
}

}  // namespace trellis::trainer
