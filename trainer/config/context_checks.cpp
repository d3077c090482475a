#include <fmt/format.h>

#include "trainer/config/layout_checks.h"

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

/// Masks of dropout are drawn by place in a whole sequence; experts and preference pairs count over
/// one.
void note_unsupported(const RunConfig& config, SectionReaders& r) {
  const ModelSection& m = config.model;
  const auto with = [&](const std::string& what) {
    r.distributed_strategy.unsupported(
        "context_parallel_size",
        fmt::format("context parallelism (context_parallel_size {}) with {}", config.cp(), what));
  };
  if (m.moe) with("a mixture of experts (model.moe)");
  if (m.orpo || m.dpo) with("preference pairs (model_alignment_strategy)");
  const bool adapters_drop = m.lora && m.lora->dropout > 0;
  if (m.hidden_dropout > 0 || m.attention_dropout > 0 || m.ffn_dropout > 0 || adapters_drop) {
    with(fmt::format(
        "dropout (hidden_dropout {}, attention_dropout {}, ffn_dropout {}, of "
        "adapters {})",
        m.hidden_dropout, m.attention_dropout, m.ffn_dropout, m.lora ? m.lora->dropout : 0));
  }
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
