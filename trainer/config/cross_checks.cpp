#include "trainer/config/cross_checks.h"

#include <fmt/format.h>

#include "base/log.h"

namespace trellis::trainer {
namespace {

/// "12 or 16": the legal neighbours of a value that must be a multiple of `unit`.
std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  if (below == 0) return fmt::format("{}", unit);
  return fmt::format("{} or {}", below, below + unit);
}

struct Divisor {
  std::string text;  ///< "micro_batch_size 2 × DP 4 = 8"
  std::int64_t value;
};

/// `key` of `reader` must be a multiple of the divisor.
void must_divide(SectionReader& reader, const std::string& key, std::int64_t value, const Divisor& divisor, const std::string& why = "") {
  if (value % divisor.value == 0) return;
  reader.problem(key, fmt::format("{} is not divisible by {}{}; nearest legal values: {}", value, divisor.text, why,
                                  nearest_multiples(value, divisor.value)));
}

Divisor tensor_parallel(const RunConfig& config) {
  return {fmt::format("tensor_model_parallel_size {}", config.tp()), config.tp()};
}

void check_heads(const RunConfig& config, SectionReaders& r) {
  const ModelSection& m = config.model;
  if (!r.model.good({"num_attention_heads", "hidden_size"})) return;
  const Divisor heads{fmt::format("num_attention_heads {}", m.num_attention_heads), m.num_attention_heads};
  must_divide(r.model, "hidden_size", m.hidden_size, heads);
  if (m.hidden_size % m.num_attention_heads == 0 && m.hidden_size / m.num_attention_heads % 2 != 0) {
    r.model.problem("hidden_size", fmt::format("a head of hidden_size {} / num_attention_heads {} = {} is odd; rotary embedding turns pairs",
                                               m.hidden_size, m.num_attention_heads, m.hidden_size / m.num_attention_heads));
  }
  if (!r.model.good({"num_kv_heads"})) return;
  must_divide(r.model, "num_attention_heads", m.num_attention_heads, {fmt::format("num_kv_heads {}", m.num_kv_heads), m.num_kv_heads});
}

void check_tensor_parallel(const RunConfig& config, SectionReaders& r) {
  if (!r.distributed_strategy.good({"tensor_model_parallel_size"})) return;
  const Divisor tp = tensor_parallel(config);
  const ModelSection& m = config.model;
  if (r.model.good({"num_attention_heads"})) must_divide(r.model, "num_attention_heads", m.num_attention_heads, tp);
  // An absent num_kv_heads follows num_attention_heads, which has been judged above.
  if (r.model.good({"num_kv_heads", "num_attention_heads"})) must_divide(r.model, "num_kv_heads", m.num_kv_heads, tp);
  if (r.model.good({"ffn_hidden_size"})) must_divide(r.model, "ffn_hidden_size", m.ffn_hidden_size, tp);
  if (config.distributed_strategy.sequence_parallel && r.model.good({"encoder_seq_length"})) {
    must_divide(r.model, "encoder_seq_length", m.encoder_seq_length, tp, ", as sequence_parallel needs");
  }
}

void check_pipeline_parallel(const RunConfig& config, SectionReaders& r) {
  if (!r.distributed_strategy.good({"pipeline_model_parallel_size"}) || !r.model.good({"num_layers"})) return;
  must_divide(r.model, "num_layers", config.model.num_layers, {fmt::format("pipeline_model_parallel_size {}", config.pp()), config.pp()});
}

/// The ranks in units of one model replica. Sizes are multiplied in 64 bits: a silly value must not overflow into a legal one.
bool check_world(const RunConfig& config, SectionReaders& r) {
  const bool known = r.trainer.good({"devices", "num_nodes"}) &&
                     r.distributed_strategy.good({"tensor_model_parallel_size", "pipeline_model_parallel_size"});
  if (!known) return false;
  const std::int64_t replica = std::int64_t{config.tp()} * config.pp();
  const std::int64_t world = std::int64_t{config.trainer.devices} * config.trainer.num_nodes;
  constexpr std::int64_t kMostRanks = 1 << 24;
  if (world > kMostRanks) {
    r.trainer.problem("devices", fmt::format("world size {} = devices {} × num_nodes {} exceeds {}", world, config.trainer.devices,
                                             config.trainer.num_nodes, kMostRanks));
    return false;
  }
  if (world % replica == 0) return true;
  r.trainer.problem("devices", fmt::format("world size {} = devices {} × num_nodes {} is not divisible by TP {} × PP {} = {}; "
                                           "nearest legal world sizes: {}",
                                           world, config.trainer.devices, config.trainer.num_nodes, config.tp(), config.pp(), replica,
                                           nearest_multiples(world, replica)));
  return false;
}

void check_batch(const RunConfig& config, SectionReaders& r) {
  if (!r.data.good({"micro_batch_size", "global_batch_size"})) return;
  const DataSection& data = config.data;
  const std::int64_t unit = std::int64_t{data.micro_batch_size} * config.dp();
  must_divide(r.data, "global_batch_size", data.global_batch_size,
              {fmt::format("micro_batch_size {} × DP {} = {}", data.micro_batch_size, config.dp(), unit), unit});
}

void check_sequence(const RunConfig& config, SectionReaders& r) {
  const ModelSection& m = config.model;
  if (r.model.good({"encoder_seq_length", "max_position_embeddings"}) && m.max_position_embeddings < m.encoder_seq_length) {
    r.model.problem("max_position_embeddings", fmt::format("{} is smaller than encoder_seq_length {}; set it to at least {}",
                                                           m.max_position_embeddings, m.encoder_seq_length, m.encoder_seq_length));
  }
  const auto length = r.data.optional<int>("seq_length");
  if (length && r.model.good({"encoder_seq_length"}) && *length != m.encoder_seq_length) {
    r.data.problem("seq_length", fmt::format("{} differs from model.encoder_seq_length {}; write ${{model.encoder_seq_length}}", *length,
                                             m.encoder_seq_length));
  }
}

}  // namespace

void cross_check(const RunConfig& config, SectionReaders& readers) {
  check_heads(config, readers);
  check_tensor_parallel(config, readers);
  check_pipeline_parallel(config, readers);
  if (check_world(config, readers)) check_batch(config, readers);
  check_sequence(config, readers);
}

void log_remarks(const RunConfig& config) {
  if (config.distributed_strategy.sequence_parallel && config.tp() == 1) {
    log_info("sequence_parallel has no effect with tensor_model_parallel_size 1");
  }
}

}  // namespace trellis::trainer
