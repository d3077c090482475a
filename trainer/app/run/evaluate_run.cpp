#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <iostream>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/process/host_memory.h"
#include "trainer/app/prepare/guarded.h"
#include "trainer/app/prepare/host_need.h"
#include "trainer/app/prepare/load_device.h"
#include "trainer/app/report/evaluation_time.h"
#include "trainer/app/run/verbs.h"
#include "trainer/evaluation/evaluate.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

/// As NxDT's evaluation example writes them, with the tokens.
json to_json(const std::vector<ModelAnswer>& answers) {
  json list = json::array();
  for (const ModelAnswer& answer : answers)
    list.push_back({{"prompt", answer.prompt},
                    {"prediction", answer.prediction},
                    {"label", answer.label},
                    {"prediction_ids", answer.ids}});
  return list;
}

json to_json(const EvaluateRequest& request, const EvaluationResult& result,
             const RunConfig& config, const std::optional<EvaluationTime>& time) {
  json document = {{"schema", "trellis.evaluate/1"},
                   {"weights", result.weights},
                   {"data", request.data},
                   {"records", result.num_records}};
  if (result.loss) {
    document["loss"] = *result.loss;
    document["perplexity"] = std::exp(*result.loss);
    document["loss_tokens"] = result.loss_tokens;
  }
  if (result.exact_match) document["exact_match"] = *result.exact_match;
  if (result.rouge)
    document["rouge"] = {{"rouge1", result.rouge->rouge1},
                         {"rouge2", result.rouge->rouge2},
                         {"rougeL", result.rouge->rouge_l}};
  if (!result.stop_tokens.empty()) document["stop_tokens"] = result.stop_tokens;
  if (!request.answers.empty()) document["answers"] = request.answers;
  if (time) document["simulated"] = to_json(*time, config);
  return document;
}

void print(const EvaluateRequest& request, const EvaluationResult& result, double seconds) {
  std::cout << terminal_line(fmt::format("{} on {}: {} records in {:.0f} s", result.weights,
                                         request.data, result.num_records, seconds))
            << "\n";
  if (result.loss)
    std::cout << fmt::format("loss {:.4f} nats per token, perplexity {:.4g}, over {} tokens\n",
                             *result.loss, std::exp(*result.loss), result.loss_tokens);
  if (!result.stop_tokens.empty())
    std::cout << terminal_line("answers end with " + result.stop_tokens) << "\n";
  if (result.exact_match)
    std::cout << fmt::format("exact match {:.1f} %\n", 100 * *result.exact_match);
  if (result.rouge)
    std::cout << fmt::format("ROUGE-1 {:.4f}, ROUGE-2 {:.4f}, ROUGE-L {:.4f} (F1)\n",
                             result.rouge->rouge1, result.rouge->rouge2, result.rouge->rouge_l);
  if (!request.answers.empty()) std::cout << terminal_line("answers: " + request.answers) << "\n";
  std::cout << std::flush;
}

DeviceChoice device_of(const EvaluateRequest& request, RunConfig& config) {
  DeviceChoice device = device_choice(request);
  device.nodes = config.trainer.num_nodes;
  device.record = false;
  use_machine(device, config);
  if (computes_in_host_memory(device)) {
    const HostMemory memory = available_host_memory();
    check_host_memory_of_weights(config, memory.available_bytes, memory.limit);
  }
  return device;
}

int run(const EvaluateRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  Activity activity("reading configuration, checkpoint and data");
  RunConfig config = evaluation_config(request);
  const DeviceChoice device = device_of(request, config);
  std::string counted;
  const auto progress = [&](const std::string& what, std::int64_t done, std::int64_t of) {
    if (what != counted) activity.now(what);
    counted = what;
    activity.count(done, of);
  };
  const EvaluationResult result =
      evaluate(request, config, world_on(device, config, request.host_threads), progress);
  if (!request.answers.empty()) request.answered(to_json(result.answers).dump(1) + "\n");
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::optional<EvaluationTime> time;
  std::exception_ptr not_timed;  // the metrics are known all the same
  if (is_emulated(device)) {
    activity.now("simulating the passes");
    try {
      time = time_evaluation(device, config, request, result);
    } catch (...) {
      not_timed = std::current_exception();
    }
  }
  if (request.json) {
    std::cout << to_json(request, result, config, time).dump(1) << std::endl;
  } else {
    print(request, result, seconds);
    if (time) std::cout << to_text(*time, config) << std::flush;
  }
  if (not_timed) std::rethrow_exception(not_timed);
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace
int run_evaluate(const EvaluateRequest& request) {
  return guarded([&] { return run(request); });
}

}  // namespace trellis::trainer
