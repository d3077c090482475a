#include "trainer/app/prepare/host_need.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "base/number_text.h"
#include "trainer/config/load/run_plan.h"
#include "trainer/optimizer/optimizer_options.h"

namespace trellis::trainer {
namespace {

double size_of(at::ScalarType dtype) { return static_cast<double>(c10::elementSize(dtype)); }

std::int64_t whole(double bytes) { return static_cast<std::int64_t>(bytes); }

/// States of the rule per element of a large matrix, asked of the rule itself, without memory.
double state_elements(const UpdateRule& rule) {
  constexpr std::int64_t kSide = 1024;
  Parameter parameter;
  parameter.name = "weight";
  parameter.tensor = at::empty({kSide, kSide}, at::TensorOptions().device(at::kMeta));
  ShardSlot slot;
  slot.parameter = &parameter;
  slot.elements = kSide * kSide;
  slot.rows = slot.row_elements = kSide;
  ShardLayout layout;
  layout.slots = {slot};
  layout.elements = slot.elements;
  std::int64_t elements = 0;
  for (const OptimizerState& state : rule.make_states(layout, parameter.tensor.options())) {
    for (const at::Tensor& part : state.parts) elements += part.numel();
  }
  return static_cast<double>(elements) / (kSide * kSide);
}

/// Bytes of masters, states and moving averages per parameter.
double bytes_of_states(const RunConfig& config) {
  const OptimizerOptions options = optimizer_options(config);
  const at::ScalarType weights = model_dtype(config.precision);
  const at::ScalarType shard = c10::promoteTypes(options.master_dtype, weights);
  const at::ScalarType wide = c10::promoteTypes(shard, at::kFloat);
  double bytes =
      state_elements(*options.rule) * size_of(options.rule->fp32_states() ? wide : shard);
  if (shard != weights) bytes += size_of(shard);
  if (options.ema) bytes += size_of(wide);
  return bytes;
}

/// Elements that one layer keeps of a token for its backward: its input; without full recomputation
/// also the inputs of its large matrix products.
double elements_per_token(const RunConfig& config) {
  const ModelSection& m = config.model;
  const double parts = config.tp();
  const double input = m.hidden_size / (config.distributed_strategy.sequence_parallel ? parts : 1);
  if (m.recompute == Recompute::kFull) return input;
  const double heads = (m.num_attention_heads + 2.0 * m.num_kv_heads) * m.head_dim / parts;
  const bool keeps_mlp = !m.moe && m.recompute != Recompute::kSelective;
  return input + heads + (keeps_mlp ? m.ffn_hidden_size / parts : 0);
}

/// Layers of all stages, each counted once per micro-batch that 1F1B has under way there.
double layers_in_flight(const RunConfig& config) {
  double layers = 0;
  const auto stages = layers_of_stages(config);
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const int rank = static_cast<int>(stage) % config.pp();
    const auto& [first, end] = stages[stage];
    layers += 1.0 * (end - first) * std::min(config.num_microbatches(), config.pp() - rank);
  }
  return layers;
}

double activation_bytes(const RunConfig& config, int ranks_at_once) {
  const int sequences = config.data.micro_batch_size * sequences_per_sample(config.model);
  const double tokens = 1.0 * sequences * config.model.encoder_seq_length;
  const int ranks_of_replica = config.tp() * config.pp() * config.cp();
  const int replicas = std::clamp(ranks_at_once / ranks_of_replica, 1, config.dp());
  const bool autocast = config.precision.autocast;
  const double element = size_of(autocast ? at::kBFloat16 : model_dtype(config.precision));
  const double of_layer = tokens * elements_per_token(config) * element * config.tp();
  return of_layer * layers_in_flight(config) * replicas;
}

}  // namespace

HostNeed host_need(const RunConfig& config, int ranks_at_once) {
  double parameters = 0;  // of a replica, what several ranks hold counted each time
  for (const std::int64_t of_rank : plan_run(config).parameters_of_pipeline_rank) {
    parameters += static_cast<double>(of_rank) * config.tp();
  }
  const OptimizerOptions options = optimizer_options(config);
  const at::ScalarType weights = model_dtype(config.precision);
  const at::ScalarType gradients = c10::promoteTypes(options.grad_dtype, weights);
  const double replicas = config.dp() * config.cp(),
               sharded = config.distributed_strategy.data_parallel_replicate_size,
               state_copies = options.zero1 ? sharded : replicas,
               copies = config.distributed_strategy.fsdp ? sharded : replicas;
  const double trained = config.model.lora ? 0 : parameters;  // adapters are small
  HostNeed need;
  need.weights = whole(parameters * copies * size_of(weights));
  need.gradients = whole(trained * copies * size_of(gradients));
  need.optimizer_states = whole(trained * state_copies * bytes_of_states(config));
  need.activations = whole(activation_bytes(config, ranks_at_once));
  return need;
}

void check_host_memory(const RunConfig& config, int ranks_at_once, std::int64_t available_bytes,
                       const std::string& limit) {
  const HostNeed need = host_need(config, ranks_at_once);
  if (need.total() <= available_bytes) return;
  throw Error(
      ExitCode::kDoesNotFit,
      c10::str(config.name, ": training allocates real memory on this host: it needs at least ",
               human_bytes(need.total()), " for ", config.world_size(), " ranks (weights ",
               human_bytes(need.weights), ", gradients ", human_bytes(need.gradients),
               ", optimizer states ", human_bytes(need.optimizer_states), ", activations ",
               human_bytes(need.activations), "), but ", human_bytes(available_bytes),
               " are available (", limit,
               "). `trellis simulate` gives the step time and "
               "`trellis memory` each device's memory without allocating weights; to train "
               "here, take fewer ranks or a smaller model (model.num_layers)"));
}

void check_host_memory_of_weights(const RunConfig& config, std::int64_t available_bytes,
                                  const std::string& limit) {
  RunConfig evaluated = config;
  evaluated.distributed_strategy.fsdp = false;  // which is about training
  evaluated.distributed_strategy.data_parallel_replicate_size = 1;
  const std::int64_t need = host_need(evaluated, /*ranks_at_once=*/1).weights;
  if (need <= available_bytes) return;
  throw Error(ExitCode::kDoesNotFit,
              c10::str(config.name,
                       ": evaluation holds the weights in this host's memory: it needs "
                       "at least ",
                       human_bytes(need), " for ", config.world_size(), " ranks, but ",
                       human_bytes(available_bytes), " are available (", limit,
                       "); take fewer data-parallel ranks (trainer.devices), or a smaller "
                       "precision.type"));
}

}  // namespace trellis::trainer
