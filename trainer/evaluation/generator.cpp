#include "trainer/evaluation/generator.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "runtime/calls/call_place.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/modules/module_names.h"
#include "trainer/parallel_layers/collectives.h"
#include "trainer/scopes/autocast.h"
#include "trainer/scopes/scope.h"

namespace trellis::trainer {
namespace {

/// Prompts are filled up, so that a device compiles few shapes (NxD Inference calls them buckets).
constexpr std::int64_t kBucket = 128;

std::int64_t filled_up(std::int64_t length) { return (length + kBucket - 1) / kBucket * kBucket; }

/// [1, b, v/TP] → [b, v] on the host.
at::Tensor whole_vocabulary(const at::Tensor& logits, const ParallelGroup& tp) {
  return all_gather(logits[0].t().contiguous(), tp).t().to(at::kCPU, at::kFloat).contiguous();
}

}  // namespace

struct Generator::Batch {
  const std::vector<Prompt>& prompts;
  std::vector<std::vector<std::int64_t>> answers;
  std::vector<bool> ended;

  [[nodiscard]] std::int64_t rows() const { return std::ssize(prompts); }
  [[nodiscard]] bool all_ended() const {
    return std::ranges::all_of(ended, [](bool row) { return row; });
  }
  [[nodiscard]] std::int64_t longest_prompt() const {
    std::int64_t longest = 0;
    for (const Prompt& prompt : prompts) longest = std::max(longest, std::ssize(prompt.ids));
    return longest;
  }

  /// The prompts, [b, s]; `last`: places of their last tokens.
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> prompt_ids(std::int64_t length) const {
    at::Tensor ids = at::zeros({rows(), length}, at::kLong), last = at::empty({rows()}, at::kLong);
    for (std::int64_t row = 0; row < rows(); ++row) {
      const std::vector<std::int64_t>& prompt = prompts[static_cast<std::size_t>(row)].ids;
      std::ranges::copy(prompt, ids.mutable_data_ptr<std::int64_t>() + row * length);
      last[row] = std::ssize(prompt) - 1;
    }
    return {ids, last};
  }

  /// The newest tokens and their positions, [b, 1] each; an ended row repeats its last token.
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> newest() const {
    at::Tensor ids = at::empty({rows(), 1}, at::kLong), positions = at::empty_like(ids);
    for (std::int64_t row = 0; row < rows(); ++row) {
      const auto& answer = answers[static_cast<std::size_t>(row)];
      ids[row][0] = answer.back();
      positions[row][0] =
          std::ssize(prompts[static_cast<std::size_t>(row)].ids) + std::ssize(answer) - 1;
    }
    return {ids, positions};
  }
};

Generator::Generator(const RunConfig& config, const ModuleContext& context,
                     const std::vector<std::unique_ptr<PipelineStage>>& stages)
    : config_(config),
      context_(context),
      stage_(*stages.front()),
      border_(residual_dtype(config.model, context.dtype)) {
  refuse_unsupported();
}

void Generator::refuse_unsupported() const {
  const auto refuse = [](const std::string& key, int got) {
    if (got == 1) return;
    throw ConfigError("distributed_strategy." + key +
                      ": answers are not generated with it: expected 1, got " +
                      std::to_string(got) + "; set it to 1: weights do not depend on it");
  };
  refuse("context_parallel_size", config_.cp());
  refuse("expert_model_parallel_size", config_.ep());
  refuse("virtual_pipeline_model_parallel_size", config_.vpp());
  if (config_.model.moe && config_.model.moe->capacity_factor && !config_.model.moe->dropless)
    throw ConfigError(
        "model.moe.capacity_factor: an answer would depend on the others that are generated with "
        "it, because experts drop tokens; set model.moe.dropless to true");
}

std::vector<std::vector<std::int64_t>> Generator::generate(const std::vector<Prompt>& prompts,
                                                           const GenerationOptions& options) const {
  const at::NoGradGuard no_grad;
  const AutocastScope autocast(context_.device.type(), config_.precision.autocast);
  context_.position->training = false;
  const std::int64_t most = config_.model.encoder_seq_length;
  Batch batch{prompts, std::vector<std::vector<std::int64_t>>(prompts.size()),
              std::vector<bool>(prompts.size(), options.max_new_tokens == 0)};
  const std::int64_t room = std::max(options.cached_tokens, options.max_new_tokens);
  KvCache cache(std::min(filled_up(batch.longest_prompt() + room), most));
  for (std::int64_t number = 1; !batch.all_ended(); ++number) {
    append(number == 1 ? read_prompts(batch, cache) : read_newest(batch, cache), options, batch);
    if (options.ended) options.ended(number, cache);
  }
  return batch.answers;
}

at::Tensor Generator::read_prompts(const Batch& batch, KvCache& cache) const {
  const Scope scope("phase=prefill");
  const std::int64_t length =
      std::min<std::int64_t>(filled_up(batch.longest_prompt()), config_.model.encoder_seq_length);
  const auto [ids, last] = batch.prompt_ids(length);
  cache.begin(on_device(at::arange(length, at::kLong).unsqueeze(0).repeat({batch.rows(), 1})));
  return pass({on_device(ids), on_device(last)}, cache);
}

at::Tensor Generator::read_newest(const Batch& batch, KvCache& cache) const {
  const Scope scope("phase=decode");
  const auto [newest, positions] = batch.newest();
  cache.begin(on_device(positions));
  return pass({on_device(newest)}, cache);
}

/// Through all stages, one after the other.
at::Tensor Generator::pass(const DecodeTokens& tokens, KvCache& cache) const {
  const ParallelGroup& pipeline = context_.parallel->get_pipeline_model_parallel_group();
  const at::Tensor input = pipeline.rank > 0 ? receive(cache) : at::Tensor();
  at::Tensor output = stage_.decode(input, tokens, cache);
  if (pipeline.rank == pipeline.size - 1) return output;
  std::vector<at::Tensor> sent{output.contiguous()};
  const runtime::CallSite here;
  pipeline.group->send(sent, pipeline.rank + 1, 0)->wait();
  return {};
}

at::Tensor Generator::receive(const KvCache& cache) const {
  const ParallelGroup& pipeline = context_.parallel->get_pipeline_model_parallel_group();
  const at::Tensor& positions = cache.positions();
  std::vector<at::Tensor> received{
      at::empty({positions.size(1), positions.size(0), config_.model.hidden_size},
                at::TensorOptions().dtype(border_).device(context_.device))};
  const runtime::CallSite here;
  pipeline.group->recv(received, pipeline.rank - 1, 0)->wait();
  return received[0];
}

/// The last stage chooses the tokens; the others learn them.
void Generator::append(const at::Tensor& logits, const GenerationOptions& options,
                       Batch& batch) const {
  at::Tensor chosen = at::zeros({batch.rows()}, at::kLong);
  if (logits.defined()) {
    const at::Tensor whole = whole_vocabulary(logits, context_.tp());
    const std::int64_t tokens = std::min(options.vocab_size, whole.size(1));
    for (std::int64_t row = 0; row < batch.rows(); ++row) {
      const auto place = static_cast<std::size_t>(row);
      const float* first = whole.const_data_ptr<float>() + row * whole.size(1);
      chosen[row] = choose_token({first, static_cast<std::size_t>(tokens)}, options.sampling,
                                 draw_of(options.sampling.seed, batch.prompts[place].record,
                                         std::ssize(batch.answers[place])));
    }
  }
  const ParallelGroup& pipeline = context_.parallel->get_pipeline_model_parallel_group();
  if (pipeline.size > 1) chosen = all_reduce(on_device(chosen), pipeline).cpu();
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    const auto place = static_cast<std::size_t>(row);
    if (batch.ended[place]) continue;
    std::vector<std::int64_t>& answer = batch.answers[place];
    answer.push_back(chosen[row].item<std::int64_t>());
    const std::int64_t length = std::ssize(batch.prompts[place].ids) + std::ssize(answer);
    batch.ended[place] = options.stop.contains(answer.back()) ||
                         std::ssize(answer) == options.max_new_tokens ||
                         length >= config_.model.encoder_seq_length;
  }
}

}  // namespace trellis::trainer
