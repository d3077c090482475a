#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/app/prepare/load_device.h"
#include "trainer/app/report/answer_time.h"
#include "trainer/config/run_config.h"
#include "trainer/evaluation/evaluate.h"

namespace trellis::trainer {

/// The forward passes that a loss needs, all of one shape.
struct LossTime {
  double pass_ms = 0;
  std::int64_t batch = 0, passes = 0;  ///< records of a data-parallel rank; passes one by one
  std::vector<std::string> estimated;  ///< operators without a lowering
};

/// Simulated time of an evaluation on the machine model.
struct EvaluationTime {
  std::optional<LossTime> loss;
  std::optional<AnswerTime> answers;
  AnswerSizes sizes;  ///< of `answers`: the batch with the longest prompt
};

/// Executes the passes of an evaluation without weights on the emulated machine of `choice`.
/// `config`: of evaluation_config().
[[nodiscard]] EvaluationTime time_evaluation(const DeviceChoice& choice, const RunConfig& config,
                                             const EvaluateRequest& request,
                                             const EvaluationResult& result);

/// Member `simulated` of schema trellis.evaluate/1.
[[nodiscard]] nlohmann::json to_json(const EvaluationTime& time, const RunConfig& config);
/// The same for a reader, in lines.
[[nodiscard]] std::string to_text(const EvaluationTime& time, const RunConfig& config);

}  // namespace trellis::trainer
