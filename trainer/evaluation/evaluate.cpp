#include "trainer/evaluation/evaluate.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/checkpoint/training/run_checkpoints.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/evaluation/generator.h"
#include "trainer/evaluation/stop_tokens.h"
#include "trainer/files/data/alignment/alignment_samples.h"
#include "trainer/files/data/tokenizers/make_tokenizer.h"
#include "trainer/loop/rank_model.h"
#include "trainer/loop/trainer.h"
#include "trainer/pipeline/model.h"
#include "trainer/scopes/autocast.h"

namespace trellis::trainer {
namespace {

bool asks_for(const EvaluateRequest& request, const std::string& metric) {
  return std::ranges::find(request.metrics, metric) != request.metrics.end();
}

bool generates(const EvaluateRequest& request) {
  return asks_for(request, "exact_match") || asks_for(request, "rouge") || !request.answers.empty();
}

/// An answer may end within a character: what is no UTF-8 becomes U+FFFD, as in Hugging Face's
/// tokenizers.
std::string valid_text(const std::string& text) {
  using nlohmann::json;
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
}

/// Data that all ranks read.
struct Records {
  std::shared_ptr<const RecordTokens> tokens;
  std::shared_ptr<const AnsweredSamples> samples;
  std::int64_t count = 0, batch = 1, sequence = 0;
  std::int64_t vocab_size = 0;  ///< of the tokenizer
  StopTokens stop;
};

Records open(const EvaluateRequest& request, const RunConfig& config) {
  auto texts = std::make_shared<const RecordTexts>(open_records(request.data, "--data"),
                                                   config.data.tokenizer.type);
  Records records;
  records.tokens = std::make_shared<const RecordTokens>(std::move(texts), config.data.tokenizer);
  AlignmentSampleOptions options;
  options.sequence = config.model.encoder_seq_length;
  options.most_records = request.limit;
  if (config.data.records.truncation_mode == "keep_end") options.truncation = Truncation::kKeepEnd;
  records.samples = std::make_shared<const AnsweredSamples>(records.tokens, options);
  records.sequence = options.sequence;
  records.count = records.samples->num_samples();
  records.batch = request.batch > 0 ? request.batch : config.data.micro_batch_size;
  const auto tokenizer = make_tokenizer(config.data.tokenizer);
  records.vocab_size = tokenizer->vocab_size();
  if (generates(request))
    records.stop = stop_tokens(config, *tokenizer, records.tokens->question(0).end);
  if (config.model.vocab_size < records.vocab_size)
    throw ConfigError("model.vocab_size: expected at least the " +
                      std::to_string(records.vocab_size) + " tokens of data.tokenizer, got " +
                      std::to_string(config.model.vocab_size) +
                      "; give the tokenizer that the model was trained with");
  return records;
}

/// Rows [first, first + batch) of the records; those past the end only fill it.
MicroBatch micro_batch(const Records& records, std::int64_t first) {
  const std::int64_t length = records.sequence;
  const std::vector<std::int64_t> sizes{records.batch, length};
  MicroBatch batch{at::empty(sizes, at::kLong), at::empty(sizes, at::kLong),
                   at::ones(sizes, at::kFloat)};
  for (std::int64_t row = 0; row < records.batch; ++row) {
    const bool fills = first + row >= records.count;
    const Sample sample = records.samples->item(fills ? -1 : first + row);
    std::ranges::copy(sample.tokens,
                      batch.input_ids.mutable_data_ptr<std::int64_t>() + row * length);
    std::ranges::copy(sample.labels, batch.labels.mutable_data_ptr<std::int64_t>() + row * length);
    if (fills) batch.loss_mask[row].zero_();
    batch.places.push_back(row);
  }
  return batch;
}

/// One rank's model.
class RankEvaluation {
 public:
  RankEvaluation(const EvaluateRequest& request, const RunConfig& config, const Records& records,
                 runtime::RankContext& rank)
      : request_(request),
        config_(config),
        records_(records),
        parallel_(ParallelState::initialize_model_parallel(rank, parallel_sizes(config))),
        context_(module_context(config, {rank.device(), false}, parallel_, parameters_)),
        model_(build_stages(config, context_), context_, {}) {}

  /// `adapter`: null: those of `weights`. `names`: of all ranks.
  void load(const checkpoint::Resume& weights, checkpoint::AdapterLoader* adapter,
            checkpoint::NameUnion& names, runtime::RankContext& rank) {
    const std::vector<checkpoint::LiveTensor> live =
        checkpoint::live_weights(parameters_, checkpoint::place_of(parallel_, false));
    checkpoint::refuse_unused_weights(weights, rank, names, live, config_);
    checkpoint::load(weights, rank, live);
    if (adapter != nullptr) adapter->load(rank, parameters_, {live, {}});
  }

  using Count = std::function<void(std::int64_t done)>;

  /// [Σ loss, tokens] over all records, the same on every rank.
  std::pair<double, double> loss(const Count& count) {
    const std::int64_t dp = parallel_.get_data_parallel_size(), all = records_.batch * dp;
    std::vector<at::Tensor> sums;
    for (std::int64_t first = 0; first < records_.count; first += all) {
      const AutocastScope autocast(context_.device.type(), config_.precision.autocast);
      std::vector<MicroBatch> batches = {
          micro_batch(records_, first + parallel_.get_data_parallel_rank() * records_.batch)};
      take_sequence_parts(batches, context_);
      sums.push_back(model_.run_eval_sums(batches));
      count(std::min(first + all, records_.count));
    }
    const at::Tensor total = at::stack(sums).cpu().to(at::kDouble).sum(0);
    return {total[0].item<double>(), total[1].item<double>()};
  }

  /// Fills the answers to this rank's records; of a TP × PP group the first rank writes.
  void answer(std::vector<ModelAnswer>& answers, const Count& count) const {
    const Generator generator(config_, context_, model_.stages());
    const auto tokenizer = make_tokenizer(config_.data.tokenizer);
    const GenerationOptions options{
        request_.max_new_tokens,
        {request_.temperature, request_.top_k, request_.top_p, request_.seed},
        records_.stop.ids,
        records_.vocab_size};
    const bool writes = parallel_.get_tensor_model_parallel_rank() == 0 &&
                        parallel_.get_pipeline_model_parallel_rank() == 0;
    const std::int64_t dp = parallel_.get_data_parallel_size(), all = records_.batch * dp;
    for (std::int64_t first = parallel_.get_data_parallel_rank() * records_.batch;
         first < records_.count; first += all) {
      std::vector<ModelAnswer> found;
      const std::vector<Prompt> prompts = questions(first, found);
      const auto ids = generator.generate(prompts, options);
      for (std::size_t row = 0; writes && row < found.size(); ++row) {
        found[row].prompt_tokens = std::ssize(prompts[row].ids);
        found[row].ids = ids[row];
        found[row].prediction = text_of(*tokenizer, ids[row]);
        answers[static_cast<std::size_t>(first) + row] = std::move(found[row]);
      }
      count(std::min(first + all, records_.count));
    }
  }

 private:
  std::vector<Prompt> questions(std::int64_t first, std::vector<ModelAnswer>& answers) const {
    std::vector<Prompt> prompts;
    const std::int64_t most = config_.model.encoder_seq_length - 1;
    for (std::int64_t i = first; i < std::min(first + records_.batch, records_.count); ++i) {
      QuestionTokens question = records_.tokens->question(i);
      if (std::ssize(question.ids) > most)
        throw ConfigError(records_.tokens->texts().where(i) + ": the prompt has " +
                          std::to_string(question.ids.size()) + " tokens: expected at most " +
                          std::to_string(most) +
                          ", so that an answer fits into model.encoder_seq_length; shorten it, or "
                          "leave the record out");
      prompts.push_back({i, {question.ids.begin(), question.ids.end()}});
      answers.push_back({std::move(question.prompt), "", std::move(question.answer), 0, {}});
    }
    return prompts;
  }

  [[nodiscard]] std::string text_of(const Tokenizer& tokenizer,
                                    const std::vector<std::int64_t>& ids) const {
    std::vector<std::int32_t> shown;
    for (const std::int64_t id : ids)
      if (!records_.stop.ids.contains(id)) shown.push_back(static_cast<std::int32_t>(id));
    return valid_text(tokenizer.decode(shown));
  }

  const EvaluateRequest& request_;
  const RunConfig& config_;
  const Records& records_;
  ParallelState parallel_;
  ParameterList parameters_;
  ModuleContext context_;
  NxDPPModel model_;
};

void judge(const EvaluateRequest& request, EvaluationResult& result) {
  if (result.answers.empty()) return;
  const auto count = static_cast<double>(result.answers.size());
  double matches = 0;
  Rouge sum;
  for (const ModelAnswer& answer : result.answers) {
    matches += exact_match(answer.prediction, answer.label) ? 1 : 0;
    const Rouge one = rouge(answer.prediction, answer.label);
    sum.rouge1 += one.rouge1, sum.rouge2 += one.rouge2, sum.rouge_l += one.rouge_l;
  }
  if (asks_for(request, "exact_match")) result.exact_match = matches / count;
  if (asks_for(request, "rouge"))
    result.rouge = {sum.rouge1 / count, sum.rouge2 / count, sum.rouge_l / count};
}

}  // namespace

RunConfig answers_config(RunConfig config, const std::string& config_file) {
  if (is_encoder(config.model))
    throw ConfigError(config_file +
                      ": an encoder is not evaluated on records: expected a decoder such as Llama, "
                      "Mixtral or a Megatron GPT; `trellis train --test` gives its loss");
  config.distributed_strategy.sequence_parallel = false;
  config.model.dpo.reset();
  config.model.orpo.reset();
  if (config.model.moe) config.model.moe->output_router_logits = false;
  return config;
}

RunConfig evaluation_config(const EvaluateRequest& request) {
  std::vector<std::string> overrides = request.overrides;
  overrides.emplace_back("model.weight_init_only=true");
  if (!request.checkpoint.empty())
    overrides.push_back("exp_manager.resume_from_checkpoint=" + request.checkpoint);
  RunConfig config = load_run_config(request.config_file, overrides, request.instance);
  if (config.exp_manager.checkpoints.resume_from_checkpoint.empty())
    throw ConfigError(
        "--checkpoint: missing: expected a checkpoint, a folder of checkpoints or a Hugging Face "
        "folder; or exp_manager.resume_from_checkpoint in " +
        request.config_file);
  return answers_config(std::move(config), request.config_file);
}

EvaluationResult evaluate(
    const EvaluateRequest& request, const RunConfig& config, const runtime::WorldOptions& world,
    const std::function<void(const std::string&, std::int64_t, std::int64_t)>& progress) {
  const Records records = open(request, config);
  const std::optional<checkpoint::Resume> weights = checkpoint::find_resume(config, "");
  std::optional<checkpoint::AdapterLoader> adapter;
  if (config.model.lora && config.model.lora->load) adapter.emplace(config);
  EvaluationResult result;
  result.weights = checkpoint::address_of(*weights);
  if (adapter) result.weights += " with the adapters of " + adapter->address();
  result.num_records = records.count;
  result.batch = records.batch;
  result.stop_tokens = records.stop.description;
  if (generates(request)) result.answers.resize(static_cast<std::size_t>(records.count));
  checkpoint::NameUnion names(config.world_size(), "weights");
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    RankEvaluation evaluation(request, config, records, rank);
    evaluation.load(*weights, adapter ? &*adapter : nullptr, names, rank);
    const auto counter = [&](const std::string& what) {
      return [&, what](std::int64_t done) {
        if (rank.rank() == 0) progress(what, done, records.count);
      };
    };
    if (asks_for(request, "loss")) {
      const auto [sum, tokens] = evaluation.loss(counter("loss of records"));
      if (rank.rank() == 0) {
        result.loss = sum / tokens;
        result.loss_tokens = static_cast<std::int64_t>(tokens);
      }
    }
    if (generates(request)) evaluation.answer(result.answers, counter("answers to records"));
  });
  for (const ModelAnswer& answer : result.answers)
    result.prompt_tokens = std::max(result.prompt_tokens, answer.prompt_tokens);
  judge(request, result);
  return result;
}

}  // namespace trellis::trainer
