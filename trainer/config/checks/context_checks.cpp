#include <functional>
#include <string>

#include <fmt/format.h>

#include "trainer/config/checks/layout_checks.h"

namespace trellis::trainer {
namespace {

bool is_balanced(const RunConfig& config) {
  return config.distributed_strategy.context_parallel_order == "balanced";
}

void check_ring_attention(const RunConfig& config, SectionReaders& r) {
  if (config.model.ring_attention) return;
  r.distributed_strategy.problem(
      "context_parallel_size",
      fmt::format("{} needs model.fusions.ring_attention: true (and flash_attention: false)",
                  config.cp()));
}

/// Where sequence parallelism cuts the parts further, it asks for more.
void check_length(const RunConfig& config, SectionReaders& r) {
  const bool cut_further = config.distributed_strategy.sequence_parallel && !is_balanced(config);
  if (cut_further || !r.model.good({"encoder_seq_length"})) return;
  const std::int64_t chunks = is_balanced(config) ? 2 : 1;
  const std::string parts = fmt::format("context_parallel_size {}", config.cp());
  must_divide(r.model, "encoder_seq_length", config.model.encoder_seq_length,
              {chunks == 1 ? parts : fmt::format("2 × {} = {}", parts, chunks * config.cp()),
               chunks * config.cp()},
              chunks == 1 ? "" : ", as context_parallel_order balanced needs");
}

void check_window(const RunConfig& config, SectionReaders& r) {
  const std::optional<int>& window = config.model.sliding_window;
  if (!is_balanced(config) || !window || *window >= config.model.encoder_seq_length) return;
  r.distributed_strategy.problem(
      "context_parallel_order",
      fmt::format("balanced has no blocks to skip in a sliding window of {} tokens: ranks in "
                  "contiguous order are balanced by the window; write contiguous",
                  *window));
}

/// Notes settings under which a router or an expert needs all tokens of a micro-batch: the result
/// depends on which tokens a rank has.
void note_mixture(const RunConfig& config, const std::function<void(const std::string&)>& with) {
  const MoeSection& moe = *config.model.moe;
  if (moe.capacity_factor && !moe.dropless)
    with(
        fmt::format("experts that drop tokens (moe.capacity_factor {}: the capacity is that of a "
                    "whole sequence); expected null, or moe.dropless true",
                    *moe.capacity_factor));
  if (moe.routing_algorithm == "sinkhorn")
    with(
        "moe.routing_algorithm sinkhorn, which balances whole sequences; expected top_k or "
        "group_limited");
  if (moe.jitter_eps > 0) with(fmt::format("moe.jitter_eps {}; expected 0", moe.jitter_eps));
  if (config.distributed_strategy.token_shuffle_group_size > 1)
    with(fmt::format("token_shuffle_group_size {}; expected 1",
                     config.distributed_strategy.token_shuffle_group_size));
}

void note_unsupported(const RunConfig& config, SectionReaders& r) {
  const auto with = [&](const std::string& what) {
    r.distributed_strategy.unsupported(
        "context_parallel_size",
        fmt::format("context parallelism (context_parallel_size {}) with {}", config.cp(), what));
  };
  if (config.model.moe) note_mixture(config, with);
  if (config.model.attention_dropout > 0)
    with(
        fmt::format("attention_dropout {}: blocks of the ring are fused attentions, which drop "
                    "nothing; expected 0 (hidden_dropout, ffn_dropout and lora_dropout may be on)",
                    config.model.attention_dropout));
}

}  // namespace

void check_context_parallel(const RunConfig& config, SectionReaders& readers) {
  if (config.cp() == 1 || is_encoder(config.model) ||
      !readers.distributed_strategy.good({"context_parallel_size"}))
    return;
  check_ring_attention(config, readers);
  check_length(config, readers);
  check_window(config, readers);
  note_unsupported(config, readers);
}

}  // namespace trellis::trainer
