#include "trainer/app/report/answer_time.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "trainer/app/report/timed_passes.h"
#include "trainer/evaluation/generator.h"

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

/// Sizes on one rank.
struct RankSizes {
  std::int64_t weight_bytes = 0, cache_bytes = 0, cached_tokens = 0;
};

/// Tokens per second of all data-parallel ranks together, after the first token.
double tokens_per_second(double decode_ms, const AnswerSizes& sizes, const RunConfig& config) {
  return static_cast<double>(sizes.batch * config.dp()) * 1e3 / decode_ms;
}

/// The two passes of one rank.
RankSizes execute(ShapeOnlyModel& model, const AnswerSizes& sizes) {
  RankSizes rank_sizes;
  for (const Parameter& parameter : model.parameters)
    rank_sizes.weight_bytes += static_cast<std::int64_t>(parameter.tensor.nbytes());
  GenerationOptions options;
  options.max_new_tokens = std::min(kDecode, sizes.max_new_tokens);
  options.cached_tokens = sizes.max_new_tokens;
  options.vocab_size = model.config.model.vocab_size;
  options.ended = [&](std::int64_t pass, const KvCache& cache) {
    rank_sizes.cache_bytes = cache.num_bytes();
    rank_sizes.cached_tokens = cache.capacity();
    model.end_pass(pass);
  };
  const std::vector<Prompt> prompts(
      static_cast<std::size_t>(sizes.batch),
      Prompt{0, std::vector<std::int64_t>(static_cast<std::size_t>(sizes.prompt_tokens))});
  (void)Generator(model.config, model.context, model.stages).generate(prompts, options);
  return rank_sizes;
}

}  // namespace

AnswerTime time_answers(DeviceChoice choice, const RunConfig& config, const AnswerSizes& sizes,
                        int host_threads) {
  refuse_too_long(config, sizes);
  std::vector<RankSizes> ranks(static_cast<std::size_t>(config.world_size()));
  const TimedPasses passes =
      time_passes(std::move(choice), config, host_threads, [&](ShapeOnlyModel& model) {
        ranks[static_cast<std::size_t>(model.rank.rank())] = execute(model, sizes);
      });
  AnswerTime time;
  time.prefill_ms = passes.ms.at(kPrefill);
  if (passes.ms.contains(kDecode)) time.decode_ms = passes.ms.at(kDecode);
  for (const RankSizes& of_rank : ranks) {
    time.weight_bytes = std::max(time.weight_bytes, of_rank.weight_bytes);
    time.cache_bytes = std::max(time.cache_bytes, of_rank.cache_bytes);
    time.cached_tokens = std::max(time.cached_tokens, of_rank.cached_tokens);
  }
  time.estimated.assign(passes.estimated.begin(), passes.estimated.end());
  return time;
}

json to_json(const AnswerTime& time, const AnswerSizes& sizes, const RunConfig& config) {
  json document = {{"schema", "trellis.answer_time/1"},
                   {"exploratory", kWhyExploratory},
                   {"tensor_parallel", config.tp()},
                   {"pipeline_parallel", config.pp()},
                   {"data_parallel", config.dp()},
                   {"batch", sizes.batch},
                   {"prompt_tokens", sizes.prompt_tokens},
                   {"max_new_tokens", sizes.max_new_tokens},
                   {"cached_tokens", time.cached_tokens},
                   {"time_to_first_token_ms", time.prefill_ms},
                   {"weight_bytes_per_core", time.weight_bytes},
                   {"kv_cache_bytes_per_core", time.cache_bytes},
                   {"estimated", time.estimated}};
  if (time.decode_ms) {
    document["time_per_output_token_ms"] = *time.decode_ms;
    document["output_tokens_per_s"] = tokens_per_second(*time.decode_ms, sizes, config);
  }
  return document;
}

std::string to_text(const AnswerTime& time, const AnswerSizes& sizes, const RunConfig& config) {
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::string text = fmt::format("Simulated answers: first token after {:.4g} ms", time.prefill_ms);
  if (time.decode_ms)
    text += fmt::format(", then {:.4g} ms per token, {:.4g} tokens/s", *time.decode_ms,
                        tokens_per_second(*time.decode_ms, sizes, config));
  text += fmt::format(
      "\n  batch {} × DP {}, prompt {}, cache {} tokens; TP {} × PP {}\n"
      "  per core {:.1f} MiB of weights and {:.1f} MiB of keys and values\n"
      "  exploratory: {}\n",
      sizes.batch, config.dp(), sizes.prompt_tokens, time.cached_tokens, config.tp(), config.pp(),
      mib(time.weight_bytes), mib(time.cache_bytes), kWhyExploratory);
  if (!time.estimated.empty())
    text += fmt::format("  estimated, without a lowering: {}\n", fmt::join(time.estimated, ", "));
  return text;
}

}  // namespace trellis::trainer
