#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/ranks/world.h"
#include "trainer/config/run_config.h"
#include "trainer/evaluation/text_metrics.h"
#include "trainer/requests/evaluate_request.h"

namespace trellis::trainer {

/// A record that the model answered.
struct ModelAnswer {
  std::string prompt, prediction, label;
  std::int64_t prompt_tokens = 0;
  std::vector<std::int64_t> ids;  ///< of the prediction, with the token that ended it
};

struct EvaluationResult {
  std::string weights;      ///< where they come from
  std::string stop_tokens;  ///< what ends answers, and which file says so; "": none were asked for
  std::int64_t num_records = 0;
  std::int64_t batch = 0;             ///< records that a data-parallel rank reads together
  std::int64_t prompt_tokens = 0;     ///< of the longest prompt that was answered
  std::optional<double> loss;         ///< nats per token, mean over the tokens of answers
  std::int64_t loss_tokens = 0;       ///< of answers, that the loss is the mean over
  std::vector<ModelAnswer> answers;   ///< by record; empty when nothing asked for them
  std::optional<double> exact_match;  ///< share of the records
  std::optional<Rouge> rouge;         ///< mean over the records
};

/// The configuration of a model that answers: without preference pairs, the routers' auxiliary
/// loss, and sequence parallelism, which changes no number but asks for long sequences. Throws
/// ConfigError for encoders.
[[nodiscard]] RunConfig answers_config(RunConfig config, const std::string& config_file);

/// The configuration as an evaluation runs it: answers_config() with only weights from the
/// checkpoint. Throws ConfigError.
[[nodiscard]] RunConfig evaluation_config(const EvaluateRequest& request);

/// Loads the model and evaluates it on all ranks of `world`. `progress`: what is counted, done, of.
/// Throws ConfigError: no checkpoint, a record that does not fit, a model that does not decode.
[[nodiscard]] EvaluationResult evaluate(
    const EvaluateRequest& request, const RunConfig& config, const runtime::WorldOptions& world,
    const std::function<void(const std::string&, std::int64_t, std::int64_t)>& progress);

}  // namespace trellis::trainer
