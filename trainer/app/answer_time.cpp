#include "trainer/app/answer_time.h"

#include <algorithm>
#include <set>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "runtime/device_plugin.h"
#include "trainer/evaluation/generator.h"
#include "trainer/modules/module_names.h"
#include "trainer/rank_model.h"
#include "trainer/trainer.h"
#include "trainer/utils/scope.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

constexpr std::int64_t kPrefill = 1, kDecode = 2;  // passes of the Generator, steps of the device
constexpr const char* kWhyExploratory =
    "no published times of prefill or decoding are compared with the model; a pass of decoding "
    "reads all places of the cache, however many tokens are in it";

void refuse_too_long(const RunConfig& config, const AnswerSizes& sizes) {
  const std::int64_t most = config.model.encoder_seq_length;
  if (sizes.prompt_tokens + sizes.max_new_tokens <= most) return;
  throw ConfigError(fmt::format(
      "--prompt-tokens {} and --max-new-tokens {}: expected together at most the {} tokens of "
      "model.encoder_seq_length, got {}; shorten them, or set model.encoder_seq_length",
      sizes.prompt_tokens, sizes.max_new_tokens, most, sizes.prompt_tokens + sizes.max_new_tokens));
}

/// Of one rank.
struct RankSizes {
  std::int64_t weight_bytes = 0, cache_bytes = 0, cached_tokens = 0;
};

/// Of all data-parallel ranks together, after the first token.
double tokens_per_second(const AnswerTime& time, const AnswerSizes& sizes,
                         const RunConfig& config) {
  return static_cast<double>(sizes.batch * config.dp()) * 1e3 / time.decode_ms;
}

/// One rank's two passes; each is a step of its device.
class RankAnswer {
 public:
  RankAnswer(const RunConfig& config, runtime::RankContext& rank)
      : config_(config),
        rank_(rank),
        parallel_(ParallelState::initialize_model_parallel(rank, parallel_sizes(config))),
        context_(module_context(config, {rank.device(), true}, parallel_, parameters_)) {
    const Scope scope("phase=init");
    stages_ = build_stages(config, context_);
  }

  /// `simulate` is called on rank 0 when all ranks have ended a pass.
  RankSizes execute(const AnswerSizes& sizes, const std::function<void(std::int64_t)>& simulate) {
    const trellis_device_plugin_t& device = rank_.plugin()->api();
    RankSizes rank_sizes;
    for (const Parameter& parameter : parameters_)
      rank_sizes.weight_bytes += static_cast<std::int64_t>(parameter.tensor.nbytes());
    GenerationOptions options;
    options.max_new_tokens = kDecode;
    options.cached_tokens = sizes.max_new_tokens;
    options.vocab_size = config_.model.vocab_size;
    options.ended = [&](std::int64_t pass, const KvCache& cache) {
      rank_.plugin()->check(device.end_step(pass));
      rank_sizes.cache_bytes = cache.num_bytes();
      rank_sizes.cached_tokens = cache.capacity();
      rank_.host_barrier();
      if (rank_.rank() == 0) simulate(pass);
      rank_.host_barrier();
    };
    const std::vector<Prompt> prompts(
        static_cast<std::size_t>(sizes.batch),
        Prompt{0, std::vector<std::int64_t>(static_cast<std::size_t>(sizes.prompt_tokens))});
    (void)Generator(config_, context_, stages_).generate(prompts, options);
    return rank_sizes;
  }

 private:
  const RunConfig& config_;
  runtime::RankContext& rank_;
  ParallelState parallel_;
  ParameterList parameters_;
  ModuleContext context_;
  std::vector<std::unique_ptr<PipelineStage>> stages_;
};

}  // namespace

AnswerTime time_answers(DeviceChoice choice, const RunConfig& config, const AnswerSizes& sizes,
                        int host_threads) {
  refuse_too_long(config, sizes);
  choice.shape_only = choice.record = true;
  choice.equal_ranks = equal_ranks(config);
  runtime::WorldOptions world = world_on(choice, config, host_threads);
  world.shape_only = true;
  world.exit_when_stuck = true;
  world.representatives = choice.equal_ranks.representatives();
  AnswerTime time;
  std::set<std::string> estimated;
  std::vector<RankSizes> ranks(static_cast<std::size_t>(world.world_size));
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const auto simulate = [&](std::int64_t pass) {
      const char* text = nullptr;
      world.plugin->check(world.plugin->api().simulate_step(pass, &text));
      const json report = json::parse(text);
      (pass == kPrefill ? time.prefill_ms : time.decode_ms) = report.at("step_time_ms");
      for (const json& op : report.at("coverage").at("estimated")) estimated.insert(op);
    };
    ranks[static_cast<std::size_t>(rank.rank())] =
        RankAnswer(config, rank).execute(sizes, simulate);
  });
  for (const RankSizes& of_rank : ranks) {
    time.weight_bytes = std::max(time.weight_bytes, of_rank.weight_bytes);
    time.cache_bytes = std::max(time.cache_bytes, of_rank.cache_bytes);
    time.cached_tokens = std::max(time.cached_tokens, of_rank.cached_tokens);
  }
  time.estimated.assign(estimated.begin(), estimated.end());
  return time;
}

json to_json(const AnswerTime& time, const AnswerSizes& sizes, const RunConfig& config) {
  return {{"schema", "trellis.answer_time/1"},
          {"exploratory", kWhyExploratory},
          {"tensor_parallel", config.tp()},
          {"pipeline_parallel", config.pp()},
          {"data_parallel", config.dp()},
          {"batch", sizes.batch},
          {"prompt_tokens", sizes.prompt_tokens},
          {"max_new_tokens", sizes.max_new_tokens},
          {"cached_tokens", time.cached_tokens},
          {"time_to_first_token_ms", time.prefill_ms},
          {"time_per_output_token_ms", time.decode_ms},
          {"output_tokens_per_s", tokens_per_second(time, sizes, config)},
          {"weight_bytes_per_core", time.weight_bytes},
          {"kv_cache_bytes_per_core", time.cache_bytes},
          {"estimated", time.estimated}};
}

std::string to_text(const AnswerTime& time, const AnswerSizes& sizes, const RunConfig& config) {
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::string text = fmt::format(
      "Simulated answers: first token after {:.4g} ms, then {:.4g} ms per token, {:.4g} tokens/s\n"
      "  batch {} × DP {}, prompt {}, cache {} tokens; TP {} × PP {}\n"
      "  per core {:.1f} MiB of weights and {:.1f} MiB of keys and values\n"
      "  exploratory: {}\n",
      time.prefill_ms, time.decode_ms, tokens_per_second(time, sizes, config), sizes.batch,
      config.dp(), sizes.prompt_tokens, time.cached_tokens, config.tp(), config.pp(),
      mib(time.weight_bytes), mib(time.cache_bytes), kWhyExploratory);
  if (!time.estimated.empty())
    text += fmt::format("  estimated, without a lowering: {}\n", fmt::join(time.estimated, ", "));
  return text;
}

}  // namespace trellis::trainer
