#include <algorithm>

#include <fmt/format.h>

#include "analysis/import/hugging_face_parts.h"

namespace trellis::analysis::hugging_face {
namespace {

/// NeuronCores of a trn1.32xlarge: the node that is assumed.
constexpr std::int64_t kNodeRanks = 32;

/// Ranks of all nodes, as the arguments say; 0: they do not.
std::int64_t given_world(const Arguments& args) {
  const std::string name = args.first_of("world_size num_processes");
  return name.empty() ? 0 : args.positive(name).value_or(0);
}

/// As many whole model copies as one node holds, or the nodes that one copy needs.
std::int64_t assumed_world(std::int64_t copy) {
  if (copy >= kNodeRanks) return copy;
  return kNodeRanks / copy * copy;
}

void place_ranks(const Arguments& args, Layout& layout) {
  const std::int64_t given = args.positive("num_machines").value_or(0);
  const bool whole_nodes = layout.world % kNodeRanks == 0;
  layout.nodes = given > 0 ? given : whole_nodes ? layout.world / kNodeRanks : 1;
  if (layout.world % layout.nodes != 0) {
    layout.problem = fmt::format("{} ranks cannot be divided among {} nodes (num_machines)",
                                 layout.world, layout.nodes);
    layout.nodes = 1;
  }
  layout.devices = layout.world / layout.nodes;
}

/// With PP optimum-neuron cuts the batch of a device into micro-batches; else each accumulation is
/// one.
void read_micro_batches(const Arguments& args, Layout& layout) {
  const std::string name = args.first_of("per_device_train_batch_size per_gpu_train_batch_size");
  const std::int64_t per_device = args.positive(name.empty() ? "per_device_train_batch_size" : name)
                                      .value_or(layout.neuron ? 1 : 8);
  layout.micro_batch = per_device;
  layout.accumulation = args.positive("gradient_accumulation_steps").value_or(1);
  if (layout.pp == 1) return;
  const std::int64_t samples = per_device * layout.accumulation;
  const std::int64_t cuts = args.integer("pipeline_parallel_num_microbatches").value_or(-1);
  const std::int64_t count = cuts < 1 ? samples : cuts;
  if (samples % count != 0) {
    layout.problem = fmt::format("{} samples of a device cannot be divided into {} micro-batches",
                                 samples, count);
    return;
  }
  layout.micro_batch = samples / count;
  layout.accumulation = count;
}

void multiply_batch(Layout& layout, bool given) {
  const double product = static_cast<double>(layout.micro_batch) *
                         static_cast<double>(layout.accumulation) * static_cast<double>(layout.dp);
  if (product > INT32_MAX) {
    layout.problem = fmt::format("a global batch of {:.0f} samples is no batch size", product);
    return;
  }
  layout.global_batch = layout.micro_batch * layout.accumulation * layout.dp;
  layout.how = fmt::format(
      "micro-batch {} × {} accumulated × DP {} = {}; DP is {} {}ranks / (TP {} × PP {})",
      layout.micro_batch, layout.accumulation, layout.dp, layout.global_batch, layout.world,
      given ? "" : "assumed ", layout.tp, layout.pp);
}

}  // namespace

Layout layout_of(const Arguments& args) {
  Layout layout;
  layout.neuron = !args.first_of(
                           "tensor_parallel_size zero_1 use_autocast pipeline_parallel_size "
                           "optimizer_use_master_weights disable_sequence_parallel")
                       .empty();
  layout.tp = args.positive("tensor_parallel_size").value_or(1);
  layout.pp = args.positive("pipeline_parallel_size").value_or(1);
  const double ranks = static_cast<double>(layout.tp) * static_cast<double>(layout.pp);
  if (ranks > INT32_MAX) {
    layout.problem = fmt::format("TP {} × PP {} are too many ranks", layout.tp, layout.pp);
    return layout;
  }
  const std::int64_t copy = layout.tp * layout.pp, given = given_world(args);
  layout.world = given > 0 ? given : assumed_world(copy);
  if (layout.world % copy != 0)
    layout.problem = fmt::format("{} ranks cannot be divided into copies of TP {} × PP {}",
                                 layout.world, layout.tp, layout.pp);
  layout.dp = std::max<std::int64_t>(1, layout.world / copy);
  place_ranks(args, layout);
  read_micro_batches(args, layout);
  multiply_batch(layout, given > 0);
  return layout;
}

Context context_of(const Arguments& args, const ModelFacts& model) {
  Context context{args, model, layout_of(args)};
  const std::int64_t steps = args.integer("max_steps").value_or(args.empty() ? 100 : -1);
  context.max_steps = steps > 0 ? steps : -1;
  context.schedule = schedule_of(args, context.max_steps);
  context.optimizer = optimizer_of(args);
  return context;
}

/// optimum-neuron trains weights in bf16, unless it casts; transformers casts fp32 weights.
std::vector<Setting> precision_of(const Context& context) {
  const Arguments& args = context.args;
  if (args.empty()) return {{"precision.type", "mixed_precision"}};
  if (!args.boolean("bf16").value_or(false)) return {{"precision.type", "fp32"}};
  if (!context.layout.neuron || args.boolean("use_autocast").value_or(false))
    return {{"precision.type", "autocast"}};
  const bool zero1 = args.boolean("zero_1").value_or(true);
  const bool masters = zero1 && args.boolean("optimizer_use_master_weights").value_or(true);
  const bool fp32_sums = zero1 && args.boolean("optimizer_use_fp32_grad_acc").value_or(true);
  const bool stochastic = args.boolean("stochastic_rounding_enabled").value_or(true);
  if (masters && fp32_sums)
    return {{"precision.type", stochastic ? "mixed_precisionSR" : "mixed_precision"}};
  return {{"precision.type", "manual"},
          {"precision.master_weights", masters ? "true" : "false"},
          {"precision.fp32_grad_acc", fp32_sums ? "true" : "false"},
          {"precision.xla_downcast_bf16", "'1'"},
          {"precision.neuron_rt_stochastic_rounding_en", stochastic ? "'1'" : "'0'"}};
}

namespace {

/// Short enough for a first run where the model allows more: no argument says how long samples are.
constexpr int kAssumedSequence = 4096;

void add_trainer(const Context& context, std::vector<Setting>& implied) {
  const Layout& layout = context.layout;
  implied.push_back({"seed", "42"});
  implied.push_back({"trainer.devices", fmt::format("{}", layout.devices)});
  implied.push_back({"trainer.num_nodes", fmt::format("{}", layout.nodes)});
  implied.push_back({"trainer.max_steps", fmt::format("{}", context.max_steps)});
  implied.push_back({"trainer.max_epochs", context.max_steps > 0 ? "-1" : "3"});
  implied.push_back({"trainer.log_every_n_steps", context.args.empty() ? "1" : "500"});
  if (!context.args.has("eval_strategy") && !context.args.has("evaluation_strategy"))
    implied.push_back({"trainer.limit_val_batches", "0"});
  if (!context.args.has("eval_on_start")) implied.push_back({"trainer.num_sanity_val_steps", "0"});
  implied.push_back({"trainer.gradient_clip_val", "1.0"});
  implied.push_back({"exp_manager.name", "hf_" + context.model.type});
  implied.push_back(
      {"exp_manager.create_checkpoint_callback", context.args.empty() ? "false" : "true"});
}

/// Several copies of a key and value head, where there are more ranks of TP than heads.
void add_parallelism(const Context& context, std::vector<Setting>& implied) {
  const Layout& layout = context.layout;
  const std::int64_t heads = context.model.kv_heads.value_or(1);
  const bool zero1 = context.args.empty() || layout.neuron;
  implied.push_back({"distributed_strategy.zero1", zero1 ? "true" : "false"});
  if (layout.tp > 1) implied.push_back({"distributed_strategy.sequence_parallel", "true"});
  if (layout.tp > heads && layout.tp % heads == 0 && !context.args.has("kv_size_multiplier")) {
    implied.push_back({"distributed_strategy.kv_replicator", fmt::format("{}", layout.tp / heads)});
    implied.push_back({"model.qkv_linear", "true"});
  }
}

void add_optimizer(const Context& context, std::vector<Setting>& implied) {
  const bool refused = !context.optimizer.problem.empty();
  for (const Setting& setting : context.optimizer.settings) implied.push_back(setting);
  if (refused) implied.push_back({"model.optim.name", "adamw"});
  implied.push_back({"model.optim.lr", "5e-05"});
  implied.push_back({"model.optim.weight_decay", "0"});
  if (context.optimizer.has_betas) implied.push_back({"model.optim.betas", "[0.9, 0.999]"});
  if (context.optimizer.has_eps) implied.push_back({"model.optim.eps", "1e-08"});
  const bool needs_name = !context.schedule.warmup.empty() || !context.schedule.kwargs.empty();
  if (context.args.empty() || context.args.has("lr_scheduler_type")) return;
  if (context.max_steps < 1 && !needs_name) return;  // without its length it does nothing
  for (const Setting& setting : context.schedule.type) implied.push_back(setting);
}

}  // namespace

void add_implied(const Context& context, ImportedConfig& imported) {
  std::vector<Setting>& implied = imported.implied;
  add_trainer(context, implied);
  add_parallelism(context, implied);
  implied.push_back({"data.micro_batch_size", fmt::format("{}", context.layout.micro_batch)});
  implied.push_back({"data.global_batch_size", fmt::format("{}", context.layout.global_batch)});
  if (context.model.has_sequence) {
    const int length =
        std::min(context.model.max_positions.value_or(kAssumedSequence), kAssumedSequence);
    implied.push_back({"model.encoder_seq_length", fmt::format("{}", length)});
  }
  add_optimizer(context, implied);
  for (const Setting& setting : precision_of(context)) implied.push_back(setting);
}

}  // namespace trellis::analysis::hugging_face
