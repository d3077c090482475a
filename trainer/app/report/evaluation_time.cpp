#include "trainer/app/report/evaluation_time.h"

#include <algorithm>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include "trainer/app/report/timed_passes.h"
#include "trainer/loop/rank_model.h"
#include "trainer/pipeline/model.h"
#include "trainer/scopes/autocast.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

constexpr const char* kWhyLossIsExploratory =
    "no published times of forward passes without a backward pass are compared with the model";

void execute_loss(ShapeOnlyModel& of_rank) {
  const RunConfig& config = of_rank.config;
  PipelineOptions options;
  options.border = stage_border(config, of_rank.context);
  NxDPPModel model(std::move(of_rank.stages), of_rank.context, options);
  const std::vector<std::int64_t> sizes{config.data.micro_batch_size,
                                        config.model.encoder_seq_length};
  std::vector<MicroBatch> batches = {
      {at::zeros(sizes, at::kLong), at::zeros(sizes, at::kLong), at::ones(sizes, at::kFloat)}};
  take_sequence_parts(batches, of_rank.context);
  const AutocastScope autocast(of_rank.context.device.type(), config.precision.autocast);
  (void)model.run_eval_sums(batches);
  of_rank.end_pass(1);
}

LossTime time_loss(const DeviceChoice& choice, RunConfig config, std::int64_t batch,
                   std::int64_t records, int host_threads) {
  config.data.micro_batch_size = static_cast<int>(batch);
  const TimedPasses timed = time_passes(choice, config, host_threads, execute_loss);
  const std::int64_t all = batch * config.dp();
  return {timed.ms.at(1),
          batch,
          (records + all - 1) / all,
          {timed.estimated.begin(), timed.estimated.end()}};
}

}  // namespace

EvaluationTime time_evaluation(const DeviceChoice& choice, const RunConfig& config,
                               const EvaluateRequest& request, const EvaluationResult& result) {
  EvaluationTime time;
  if (result.loss)
    time.loss = time_loss(choice, config, result.batch, result.num_records, request.host_threads);
  if (result.answers.empty()) return time;
  time.sizes = {
      std::min(result.batch, result.num_records), result.prompt_tokens,
      std::min(request.max_new_tokens, config.model.encoder_seq_length - result.prompt_tokens)};
  time.answers = time_answers(choice, config, time.sizes, request.host_threads);
  return time;
}

json to_json(const EvaluationTime& time, const RunConfig& config) {
  json document = json::object();
  if (time.loss)
    document["loss"] = {{"exploratory", kWhyLossIsExploratory},
                        {"batch", time.loss->batch},
                        {"data_parallel", config.dp()},
                        {"sequence_length", config.model.encoder_seq_length},
                        {"forward_pass_ms", time.loss->pass_ms},
                        {"forward_passes", time.loss->passes},
                        {"estimated", time.loss->estimated}};
  if (time.answers) document["answers"] = to_json(*time.answers, time.sizes, config);
  return document;
}

std::string to_text(const EvaluationTime& time, const RunConfig& config) {
  std::string text;
  if (time.loss) {
    const LossTime& loss = *time.loss;
    text += fmt::format(
        "Simulated loss: {} × {:.4g} ms, forward passes of batch {} × DP {}, {} tokens; TP {} × "
        "PP {}\n  exploratory: {}\n",
        loss.passes, loss.pass_ms, loss.batch, config.dp(), config.model.encoder_seq_length,
        config.tp(), config.pp(), kWhyLossIsExploratory);
    if (!loss.estimated.empty())
      text += fmt::format("  estimated, without a lowering: {}\n", fmt::join(loss.estimated, ", "));
  }
  return time.answers ? text + to_text(*time.answers, time.sizes, config) : text;
}

}  // namespace trellis::trainer
