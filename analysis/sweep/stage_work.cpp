#include "analysis/sweep/stage_work.h"

#include <algorithm>

#include "trainer/config/load/run_plan.h"
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

double residual_width(const RunConfig& config, const Widths& w) {
  return w.hidden / (config.distributed_strategy.sequence_parallel ? config.tp() : 1);
}

/// Saved width of keys, and of values: attention reads a copy for each query head, unless one key
/// head serves them all as a view. Recomputed attention keeps its inputs, and ring attention copies
/// none.
double saved_key_width(const RunConfig& config, const Widths& w) {
  const ModelSection& m = config.model;
  const int key_heads = m.num_kv_heads * config.distributed_strategy.kv_replicator / config.tp();
  const bool is_copied = key_heads > 1 && config.cp() == 1 && !recomputes(config, "CoreAttention");
  return is_copied ? w.query : w.key_value;
}

/// Tokens that the MLP of a layer multiplies on a rank. With experts these are the slots, filled or
/// not; without a capacity the mean over the EP group, whose slowest rank has as many at least.
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

/// In which softmax and cross entropy are computed.
int wide_element_bytes(const RunConfig& config) {
  if (config.precision.type == "fp64") return 8;
  return config.precision.floats_bf16 ? 2 : 4;
}

/// Where attention is not fused: its probabilities, as softmax gave them and in the activations'
/// type, in elements of a token.
double saved_scores(const RunConfig& config) {
  const ModelSection& m = config.model;
  const bool fused = (m.flash_attention || m.ring_attention) && m.attention_dropout == 0;
  if (fused || recomputes(config, "CoreAttention")) return 0;
  const int wide = wide_element_bytes(config), own = activation_element_bytes(config);
  const double heads = static_cast<double>(m.num_attention_heads) / config.tp();
  return heads * m.encoder_seq_length * (wide == own ? wide : wide + own) / own;
}

/// The elements of a token that the backward of a layer reads: inputs and results of its norms,
/// query, key and value, the context, and the inputs and results of the MLP's matrices. Frozen
/// matrices (LoRA) do not need their inputs.
double layer_elements(const RunConfig& config, const Widths& w, bool moe) {
  const trainer::TransformerBlock block = config.model.transformer_block_type;
  const bool norms_and_sums = block == trainer::TransformerBlock::kPreLn ||
                              block == trainer::TransformerBlock::kReorderedNorm;
  const bool frozen = config.model.lora.has_value();
  const int residuals = !norms_and_sums ? 1 : frozen ? 2 : 4;
  const double width = residuals * residual_width(config, w) + 2 * w.query +
                       2 * saved_key_width(config, w) + saved_scores(config);
  if (recomputes(config, "LlamaMLP")) return width;
  const bool takes = !frozen && !recomputes(config, "ActivationMultiplyMLP");
  return width + mlp_rows(config, moe) / tokens(config) * (w.gates + (takes ? 1 : 0)) * w.ffn;
}

std::int64_t size_of(const RunConfig& config, double elements) {
  return static_cast<std::int64_t>(elements * tokens(config) * activation_element_bytes(config));
}

/// Adds the activations of a layer. If the layer is computed again in the backward, only its input
/// is kept. The backward begins with the gradients of the layer's output and of its last matrix's
/// input.
void add_activations(const RunConfig& config, const Widths& w, bool moe, StageWork& work) {
  const double whole = layer_elements(config, w, moe), input = residual_width(config, w);
  const bool again = recomputes_layers(config);
  work.saved_bytes += size_of(config, again ? input : whole);
  const double repeated = again ? whole - input : 0;
  work.backward_bytes = size_of(config, repeated + input + (moe ? 0 : w.ffn));
}

/// The input of the next stage, which the forward makes last.
void add_output(const RunConfig& config, const Widths& w, StageWork& work) {
  work.forward_bytes += size_of(config, residual_width(config, w));
}

/// The last norm, logits, and their softmax in the type of the loss, which its derivative works in:
/// gone when the backward is in the layers.
void add_head(const RunConfig& config, const Widths& w, StageWork& work) {
  const double logits = static_cast<double>(config.model.vocab_size) / config.tp();
  work.forward_bytes += size_of(config, logits);
  if (trainer::is_encoder(config.model) || !(config.alignment.empty() || config.alignment == "sft"))
    return;
  const std::int64_t softmax =
      static_cast<std::int64_t>(logits * tokens(config) * wide_element_bytes(config)) +
      size_of(config, residual_width(config, w));
  work.saved_bytes += softmax;
  work.backward_bytes = std::max<std::int64_t>(0, work.backward_bytes - softmax);
}

/// Parameters of the experts of one layer that a rank holds.
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
  add_activations(config, w, moe, work);
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
  for (StageWork& stage : stages) {
    if (&stage != &last) add_output(config, w, stage);
  }
  add_head(config, w, last);
  return stages;
}

}  // namespace trellis::analysis
