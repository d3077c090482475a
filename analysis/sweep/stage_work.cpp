#include "analysis/sweep/stage_work.h"

#include <algorithm>

#include "trainer/config/run_plan.h"
#include "trainer/config/parameter_count.h"

namespace trellis::analysis {
namespace {

using trainer::Activation;
using trainer::ModelSection;
using trainer::Recompute;
using trainer::RunConfig;

/// Widths of one layer on one tensor-parallel rank.
struct Widths {
  double hidden, query, key_value, ffn, gates;

  explicit Widths(const RunConfig& config) {
    const ModelSection& m = config.model;
    const double head = m.head_dim > 0 ? m.head_dim : m.hidden_size / m.num_attention_heads;
    hidden = m.hidden_size;
    query = m.num_attention_heads * head / config.tp();
    key_value = m.num_kv_heads * head * config.distributed_strategy.kv_replicator / config.tp();
    ffn = static_cast<double>(m.ffn_hidden_size) / config.tp();
    const bool gated = m.activation == Activation::kSwiglu || m.activation == Activation::kGeglu ||
                       m.activation == Activation::kReglu;
    gates = gated ? 2 : 1;
  }

  [[nodiscard]] double attention_weights() const {
    return hidden * (query + 2 * key_value) + query * hidden;
  }
  [[nodiscard]] double up_weights() const { return gates * hidden * ffn; }
  [[nodiscard]] double down_weights() const { return hidden * ffn; }
};

double tokens(const RunConfig& config) {
  return static_cast<double>(config.data.micro_batch_size) * config.model.encoder_seq_length /
         config.cp();
}

/// Q·Kᵀ and P·V of one layer in the forward direction: 4 FLOPs per query element and key, over half
/// the square or the window.
double attention_flops(const RunConfig& config, const Widths& w) {
  const double sequence = config.model.encoder_seq_length;
  const double window = std::min<double>(
      sequence, config.model.sliding_window.value_or(config.model.encoder_seq_length));
  return 4 * w.query * (window - window * window / (2 * sequence)) * tokens(config);
}

bool recomputes(const RunConfig& config, const char* module) {
  const auto& names = config.model.recompute_modules;
  return config.model.recompute == Recompute::kSelective &&
         std::find(names.begin(), names.end(), module) != names.end();
}

bool recomputes_layers(const RunConfig& config) {
  return config.model.recompute == Recompute::kFull || recomputes(config, "LlamaDecoderLayer");
}

/// Inputs of the layer's blocks, query, key and value, the context, and inside the MLP what its
/// matrices gave and take.
double saved_elements(const RunConfig& config, const Widths& w, bool moe) {
  const double shards = config.distributed_strategy.sequence_parallel ? config.tp() : 1;
  const double residual = w.hidden / shards;
  if (recomputes_layers(config) || config.model.lora) return residual;
  double width = residual + 2 * w.query + 2 * w.key_value;
  if (config.model.transformer_block_type == trainer::TransformerBlock::kPreLn) width += residual;
  if (moe || recomputes(config, "LlamaMLP")) return width;
  return width + w.gates * w.ffn + (recomputes(config, "ActivationMultiplyMLP") ? 0 : w.ffn);
}

/// Tokens that the MLP of a layer multiplies on a rank. Of experts: the slots, filled or not;
/// without a capacity the mean over the EP group, whose slowest rank has as many at least.
double mlp_rows(const RunConfig& config, bool moe) {
  if (!moe) return tokens(config);
  const trainer::MoeSection& experts = *config.model.moe;
  double picks = tokens(config) * experts.top_k;
  if (!experts.dropless) {
    const double share = picks * experts.capacity_factor.value_or(experts.num_experts) /
                         static_cast<double>(experts.num_experts);
    picks = std::min(tokens(config), share) * static_cast<double>(experts.num_experts);
  }
  return picks + tokens(config) * static_cast<double>(experts.num_shared_experts);
}

/// Of the experts of one layer that a rank holds.
std::int64_t expert_parameters(const RunConfig& config) {
  const ModelSection& model = config.model;
  if (!model.moe || model.moe->num_experts == 1) return 0;
  const std::int64_t experts = model.moe->num_experts;
  const auto layer = [&](std::int64_t ep) {
    return trainer::count_parameters(model, config.tp(), config.distributed_strategy.kv_replicator,
                                     static_cast<int>(ep))
        .moe_layer;
  };
  return (layer(1) - layer(experts)) / (experts - 1) * (experts / config.ep());
}

/// Adds one layer. Recomputation ends before the last matrix product of a layer: its result is
/// unknown in the backward pass.
void add_layer(const RunConfig& config, const Widths& w, bool moe, StageWork& work) {
  const double mlp = w.up_weights() + w.down_weights(), rows = mlp_rows(config, moe);
  const double linear = 2 * (w.attention_weights() * tokens(config) + mlp * rows),
               scores = attention_flops(config, w);
  const double repeated =
      recomputes_layers(config) ? linear - 2 * w.down_weights() * rows + scores : 0;
  work.forward_flops += linear + scores;
  work.backward_chain_flops += linear + 2 * scores;
  work.backward_flops += (config.model.lora ? 1 : 2) * linear + 2 * scores + repeated;
  work.weight_bytes += static_cast<std::int64_t>((w.attention_weights() + (moe ? 0 : mlp)) *
                                                 weight_element_bytes(config));
  work.saved_bytes += static_cast<std::int64_t>(saved_elements(config, w, moe) * tokens(config) *
                                                activation_element_bytes(config));
  const bool serial = config.model.transformer_block_type != trainer::TransformerBlock::kGptJ;
  const int sums = config.tp() == 1 ? 0 : serial && !moe ? 2 : 1;
  work.sums_forward += sums;
  work.sums_backward += config.model.lora ? 0 : sums;
}

}  // namespace

int weight_element_bytes(const RunConfig& config) {
  if (config.precision.type == "fp64") return 8;
  return config.precision.type != "fp32" && config.precision.weights_bf16 ? 2 : 4;
}

int gradient_element_bytes(const RunConfig& config) {
  const int own = weight_element_bytes(config);
  return own == 2 && config.distributed_strategy.zero1 && config.precision.fp32_grad_acc ? 4 : own;
}

int activation_element_bytes(const RunConfig& config) {
  return config.precision.autocast ? 2 : weight_element_bytes(config);
}

std::int64_t hidden_bytes(const RunConfig& config) {
  return static_cast<std::int64_t>(tokens(config)) * config.model.hidden_size *
         activation_element_bytes(config);
}

std::int64_t logits_bytes(const RunConfig& config) {
  return static_cast<std::int64_t>(tokens(config)) * config.model.vocab_size / config.tp() *
         activation_element_bytes(config);
}

std::vector<StageWork> stage_work(const RunConfig& config) {
  const Widths w(config);
  const trainer::RunPlan plan = trainer::plan_run(config);
  const std::int64_t of_experts = expert_parameters(config);
  std::vector<StageWork> stages;
  for (const trainer::StagePlan& stage : plan.stages) {
    StageWork work;
    for (int layer = stage.first_layer; layer < stage.end_layer; ++layer) {
      const bool moe = trainer::is_moe_layer(config.model, layer);
      add_layer(config, w, moe, work);
      if (moe && !config.model.lora) work.expert_parameters += of_experts;
    }
    work.parameters = stage.parameters_per_rank;
    work.trained_parameters = config.model.lora ? 0 : stage.parameters_per_rank;
    stages.push_back(work);
  }
  const double head = w.hidden * config.model.vocab_size / config.tp(),
               flops = 2 * head * tokens(config);
  StageWork& last = stages.back();
  last.forward_flops += flops;
  last.backward_chain_flops += flops;
  last.backward_flops += (config.model.lora ? 1 : 2) * flops;
  last.weight_bytes += static_cast<std::int64_t>(head * weight_element_bytes(config));
  return stages;
}

}  // namespace trellis::analysis
