#include "trainer/config/checks/layout_checks.h"
#include "trainer/config/names.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace trellis::trainer {
namespace {

/// "12 or 16": the legal neighbours of a value that must be a multiple of `unit`.
std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  if (below == 0) return fmt::format("{}", unit);
  return fmt::format("{} or {}", below, below + unit);
}

std::set<std::int64_t> divisors_of(std::int64_t number) {
  std::set<std::int64_t> divisors;
  for (std::int64_t d = 1; d * d <= number; ++d) {
    if (number % d == 0) divisors.insert({d, number / d});
  }
  return divisors;
}

/// "2 or 4": the neighbours of `value` among the divisors of `number`.
std::string nearest_divisors(std::int64_t value, std::int64_t number) {
  const std::set<std::int64_t> divisors = divisors_of(number);
  const auto above = divisors.upper_bound(value);
  if (above == divisors.end()) return fmt::format("{}", number);
  return above == divisors.begin() ? fmt::format("{}", *above)
                                   : fmt::format("{} or {}", *std::prev(above), *above);
}

Divisor tensor_parallel(const RunConfig& config) {
  return {fmt::format("tensor_model_parallel_size {}", config.tp()), config.tp()};
}

/// TP may exceed the key/value heads when each is held kv_replicator times.
void check_kv_heads(const RunConfig& config, SectionReaders& r) {
  const ModelSection& m = config.model;
  const int copies = config.distributed_strategy.kv_replicator;
  if (!r.distributed_strategy.good({"kv_replicator"})) return;
  if (copies == 1) {
    if (m.num_kv_heads % config.tp() == 0) return;
    const bool replicable =
        config.tp() % m.num_kv_heads == 0 && m.num_attention_heads % config.tp() == 0;
    std::string advice =
        fmt::format("nearest legal values: {}", nearest_multiples(m.num_kv_heads, config.tp()));
    if (replicable && config.model_source == "hf") {
      advice = fmt::format(
          "hold each {} times: qkv_linear: true and distributed_strategy.kv_replicator: {}",
          config.tp() / m.num_kv_heads, config.tp() / m.num_kv_heads);
    }
    return r.model.problem("num_kv_heads",
                           fmt::format("{} is not divisible by tensor_model_parallel_size {}; {}",
                                       m.num_kv_heads, config.tp(), advice));
  }
  if (!m.qkv_linear) {
    return r.distributed_strategy.problem(
        "kv_replicator",
        fmt::format(
            "{} needs model.qkv_linear: true, whose layer replicates; write it, or set this to 1",
            copies));
  }
  if (config.tp() % copies != 0) {
    return r.distributed_strategy.problem(
        "kv_replicator",
        fmt::format("{} must divide tensor_model_parallel_size {}; nearest legal values: {}",
                    copies, config.tp(), nearest_divisors(copies, config.tp())));
  }
  const std::int64_t heads = std::int64_t{m.num_kv_heads} * copies;
  const bool fair =
      m.num_attention_heads % heads == 0;  // each copy serves as many query heads as the others
  if (heads % config.tp() == 0 && fair) return;
  std::vector<std::string> legal;
  for (const std::int64_t d : divisors_of(config.tp())) {
    if (m.num_kv_heads * d % config.tp() == 0 && m.num_attention_heads % (m.num_kv_heads * d) == 0)
      legal.push_back(std::to_string(d));
  }
  if (!fair) {
    return r.distributed_strategy.problem(
        "kv_replicator",
        fmt::format("num_attention_heads {} is not divisible by num_kv_heads {} × kv_replicator {} "
                    "= {}, so that copies would serve unequal "
                    "numbers of query heads; legal values: {}",
                    m.num_attention_heads, m.num_kv_heads, copies, heads, join_names(legal)));
  }
  r.distributed_strategy.problem(
      "kv_replicator", fmt::format("num_kv_heads {} × kv_replicator {} = {} is not divisible by "
                                   "tensor_model_parallel_size {}; "
                                   "legal values: {}",
                                   m.num_kv_heads, copies, heads, config.tp(), join_names(legal)));
}

void check_tensor_parallel(const RunConfig& config, SectionReaders& r) {
  if (!r.distributed_strategy.good({"tensor_model_parallel_size"})) return;
  const Divisor tp = tensor_parallel(config);
  const ModelSection& m = config.model;
  if (r.model.good({"num_attention_heads"}))
    must_divide(r.model, "num_attention_heads", m.num_attention_heads, tp);
  // An absent num_kv_heads follows num_attention_heads, which has been judged above.
  if (r.model.good({"num_kv_heads", "num_attention_heads"})) check_kv_heads(config, r);
  if (r.model.good({"ffn_hidden_size"}))
    must_divide(r.model, "ffn_hidden_size", m.ffn_hidden_size, tp);
}

void check_sequence_parallel(const RunConfig& config, SectionReaders& r) {
  if (!config.distributed_strategy.sequence_parallel ||
      !r.distributed_strategy.good({"tensor_model_parallel_size"}))
    return;
  if (!r.model.good({"encoder_seq_length"})) return;
  const std::int64_t both = std::int64_t{config.tp()} * config.cp();
  const Divisor parts =
      config.cp() == 1
          ? tensor_parallel(config)
          : Divisor{fmt::format("tensor_model_parallel_size {} × context_parallel_size {} = {}",
                                config.tp(), config.cp(), both),
                    both};
  must_divide(r.model, "encoder_seq_length", config.model.encoder_seq_length, parts,
              ", as sequence_parallel needs");
}

void check_cuts(const RunConfig& config, SectionReaders& r, std::int64_t stages) {
  const std::size_t count = config.model.pipeline_cuts.size();
  if (static_cast<std::int64_t>(count) == stages - 1) return;
  r.model.problem(
      "pipeline_cuts",
      fmt::format("{} cuts make {} stages, but pipeline_model_parallel_size {} × "
                  "virtual_pipeline_model_parallel_size {} "
                  "needs {}: write {} layer names, or remove the list for an even partition",
                  count, count + 1, config.pp(), config.vpp(), stages, stages - 1));
}

/// Megatron models need equal stages; Hugging Face models give the remainder to the last ones.
void check_pipeline_parallel(const RunConfig& config, SectionReaders& r) {
  const bool known = r.distributed_strategy.good(
      {"pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"});
  if (!known || !r.model.good({"num_layers", "pipeline_cuts"})) return;
  const std::int64_t pp = config.pp(), vpp = config.vpp(), stages = pp * vpp;
  const std::int64_t layers = config.model.num_layers;
  if (pp == 1 && vpp > 1) {
    return r.distributed_strategy.problem(
        "virtual_pipeline_model_parallel_size",
        fmt::format("{} needs pipeline_model_parallel_size > 1, whose bubble virtual stages make "
                    "smaller, got 1; set it to 1 or "
                    "raise pipeline_model_parallel_size",
                    vpp));
  }
  if (config.model.pipeline_cuts.empty() && config.model_source == "megatron") {
    if (layers % pp != 0)
      return must_divide(r.model, "num_layers", layers,
                         {fmt::format("pipeline_model_parallel_size {}", pp), pp});
    if (layers % stages != 0) {
      return must_divide(
          r.model, "num_layers", layers,
          {fmt::format(
               "pipeline_model_parallel_size {} × virtual_pipeline_model_parallel_size {} = {}", pp,
               vpp, stages),
           stages},
          fmt::format(" ({} layers per rank do not make {} equal virtual stages)", layers / pp,
                      vpp));
    }
  }
  if (layers < stages) {
    return r.model.problem("num_layers",
                           fmt::format("{} layers are too few for pipeline_model_parallel_size {} "
                                       "× virtual_pipeline_model_parallel_size {} = "
                                       "{} stages: each needs at least one",
                                       layers, pp, vpp, stages));
  }
  if (!config.model.pipeline_cuts.empty()) check_cuts(config, r, stages);
}

/// The ranks in units of one model replica. Sizes are multiplied in 64 bits: a silly value must not
/// overflow into a legal one.
bool check_world(const RunConfig& config, SectionReaders& r) {
  const bool known =
      r.trainer.good({"devices", "num_nodes"}) &&
      r.distributed_strategy.good(
          {"tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"});
  if (!known) return false;
  constexpr std::int64_t kMostRanks =
      1 << 20;  // more than the largest cluster of the time has; every rank is listed
  const std::int64_t world = std::int64_t{config.trainer.devices} * config.trainer.num_nodes;
  if (world > kMostRanks) {
    r.trainer.problem(
        "devices",
        fmt::format("expected a world size of at most {3}, got {0} = devices {1} × num_nodes {2}",
                    world, config.trainer.devices, config.trainer.num_nodes, kMostRanks));
    return false;
  }
  const std::pair<int, const char*> sizes[] = {{config.tp(), "tensor_model_parallel_size"},
                                               {config.pp(), "pipeline_model_parallel_size"},
                                               {config.cp(), "context_parallel_size"}};
  const auto [largest, key] = std::ranges::max(sizes, {}, &std::pair<int, const char*>::first);
  if (largest > world) {
    r.distributed_strategy.problem(
        key, fmt::format(
                 "{} exceeds the world size {} = devices {} × num_nodes {}; lower it or add ranks",
                 largest, world, config.trainer.devices, config.trainer.num_nodes));
    return false;
  }
  const std::int64_t replica = std::int64_t{config.tp()} * config.pp() * config.cp();
  if (world % replica == 0) return true;
  const std::string context = config.cp() > 1 ? fmt::format(" × CP {}", config.cp()) : "";
  r.trainer.problem(
      "devices",
      fmt::format(
          "world size {} = devices {} × num_nodes {} is not divisible by TP {} × PP {}{} = {}; "
          "nearest legal world sizes: {}",
          world, config.trainer.devices, config.trainer.num_nodes, config.tp(), config.pp(),
          context, replica, nearest_multiples(world, replica)));
  return false;
}

void check_micro_batches(const RunConfig& config, SectionReaders& r) {
  const std::int64_t count = config.num_microbatches();
  const std::int64_t unit = std::int64_t{config.data.micro_batch_size} * config.dp();
  constexpr std::int64_t kMostMicroBatches =
      1 << 14;  // published batches have some thousand sequences; each pass is planned one by one
  if (count > kMostMicroBatches) {
    return r.data.problem(
        "global_batch_size",
        fmt::format("expected at most {} micro-batches per step and replica, got {} = "
                    "global_batch_size {} / (micro_batch_size {} × DP {}); lower it or add ranks",
                    kMostMicroBatches, count, config.data.global_batch_size,
                    config.data.micro_batch_size, config.dp()));
  }
  if (count < config.pp()) {
    return r.data.problem(
        "global_batch_size",
        fmt::format(
            "{} micro-batches = global_batch_size {} / (micro_batch_size {} × DP {}) do not fill "
            "pipeline_model_parallel_size {}; raise it to at least {}, or lower the number of "
            "stages",
            count, config.data.global_batch_size, config.data.micro_batch_size, config.dp(),
            config.pp(), unit * config.pp()));
  }
  if (config.vpp() == 1 || !r.distributed_strategy.good({"virtual_pipeline_model_parallel_size"}))
    return;
  must_divide(
      r.data, "global_batch_size", config.data.global_batch_size,
      {fmt::format("micro_batch_size {} × DP {} × pipeline_model_parallel_size {} = {}",
                   config.data.micro_batch_size, config.dp(), config.pp(), unit * config.pp()),
       unit * config.pp()},
      fmt::format(", as virtual stages need ({} micro-batches in rounds of {})", count,
                  config.pp()));
}

void check_batch(const RunConfig& config, SectionReaders& r) {
  if (!r.data.good({"micro_batch_size", "global_batch_size"})) return;
  const DataSection& data = config.data;
  const std::int64_t unit = std::int64_t{data.micro_batch_size} * config.dp();
  must_divide(
      r.data, "global_batch_size", data.global_batch_size,
      {fmt::format("micro_batch_size {} × DP {} = {}", data.micro_batch_size, config.dp(), unit),
       unit});
  if (data.global_batch_size % unit == 0) check_micro_batches(config, r);
}

/// Each copy of fully sharded weights has as many data-parallel ranks as the others.
bool check_copies(const RunConfig& config, SectionReaders& r) {
  const int copies = config.distributed_strategy.data_parallel_replicate_size;
  if (config.dp() % copies == 0) return true;
  r.distributed_strategy.problem(
      "data_parallel_replicate_size",
      fmt::format("{} must divide DP {}; nearest legal values: {}", copies, config.dp(),
                  nearest_divisors(copies, config.dp())));
  return false;
}

/// Experts and shuffled tokens spread over the data-parallel ranks.
void check_expert_groups(const RunConfig& config, SectionReaders& r) {
  const DistributedStrategySection& s = config.distributed_strategy;
  if (!config.model.moe ||
      !r.distributed_strategy.good({"expert_model_parallel_size", "token_shuffle_group_size"}))
    return;
  const std::int64_t ep = s.expert_model_parallel_size, copies = s.data_parallel_replicate_size,
                     shards = std::int64_t{config.dp()} * config.cp() / copies;
  if (shards % ep != 0) {
    r.distributed_strategy.problem(
        "expert_model_parallel_size",
        fmt::format("{} must divide DP {} × CP {}{} = {}; nearest legal values: {}", ep,
                    config.dp(), config.cp(),
                    copies > 1 ? fmt::format(" / data_parallel_replicate_size {}", copies) : "",
                    shards, nearest_divisors(ep, shards)));
  }
  if (config.dp() % s.token_shuffle_group_size != 0) {
    r.distributed_strategy.problem(
        "token_shuffle_group_size",
        fmt::format("{} must divide DP {}; nearest legal values: {}", s.token_shuffle_group_size,
                    config.dp(), nearest_divisors(s.token_shuffle_group_size, config.dp())));
  }
  if (config.model.moe->num_experts % ep != 0) {
    r.distributed_strategy.problem(
        "expert_model_parallel_size",
        fmt::format("{} must divide model.moe.num_experts {}; nearest legal values: {}", ep,
                    config.model.moe->num_experts,
                    nearest_divisors(ep, config.model.moe->num_experts)));
  }
}

}  // namespace

void must_divide(SectionReader& reader, const std::string& key, std::int64_t value,
                 const Divisor& divisor, const std::string& why) {
  if (value % divisor.value == 0) return;
  reader.problem(key, fmt::format("{} is not divisible by {}{}; nearest legal values: {}", value,
                                  divisor.text, why, nearest_multiples(value, divisor.value)));
}

void check_layout(const RunConfig& config, SectionReaders& readers) {
  check_tensor_parallel(config, readers);
  check_sequence_parallel(config, readers);
  check_pipeline_parallel(config, readers);
  if (!check_world(config, readers)) return;
  check_batch(config, readers);
  if (check_copies(config, readers)) check_expert_groups(config, readers);
}

}  // namespace trellis::trainer
