#include "trainer/models/decoder/decoder.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/config/logged_scalars.h"
#include "trainer/parallel_layers/loss_functions.h"

namespace trellis::trainer {
namespace {

RotarySpec rotary_spec(const ModelSection& config) {
  RotarySpec spec;
  spec.head_dim = head_dim(config);
  spec.sequence_length = config.encoder_seq_length;
  spec.max_position_embeddings = config.max_position_embeddings;
  spec.theta = config.rope_theta;
  spec.percentage = config.rotary_percentage;
  spec.scaling = config.rope_scaling;
  return spec;
}

}  // namespace

at::Tensor masked_loss_sums(const at::Tensor& logits, const MicroBatch& batch,
                            const EntropyContext& context) {
  const at::Tensor labels = batch.labels.t();
  const at::Tensor losses = parallel_cross_entropy(
      logits, labels, context.tp, {.entry_dtype = context.entry_dtype, .ignore_index = kIgnored});
  at::Tensor weights = labels.ne(kIgnored).to(losses.scalar_type());
  if (batch.loss_mask.defined()) weights = weights * batch.loss_mask.t().to(losses.scalar_type());
  return at::stack({(losses * weights).sum(), weights.sum()});
}

at::Tensor masked_mean_loss(const at::Tensor& logits, const MicroBatch& batch,
                            const EntropyContext& context) {
  return weighted_mean(masked_loss_sums(logits, batch, context));
}

Decoder::Decoder(const ModelSection& config, const ModuleNames& names, const ModuleContext& context,
                 const StageSlot& slot)
    : entropy_{context.tp(), context.wide_dtype,
               context.parallel->get_context_model_parallel_group()},
      sequence_(context.sequence(config.encoder_seq_length)),
      save_logits_(config.save_logits),
      frozen_(config.lora.has_value()),
      orpo_(config.orpo),
      dpo_(config.dpo),
      num_metrics_(std::ssize(preference_tags(config))),
      auxiliary_(auxiliary_loss_of(config)),
      counts_tokens_(config.moe && !context.shape_only),
      hidden_size_(config.hidden_size),
      local_length_(sequence_.local_length() / (context.sequence_parallel ? context.tp().size : 1)),
      position_(context.position),
      sharding_(context.fully_sharded),
      head_scope_(context.scope(names.head)),
      loss_scope_(context.scope("loss")) {
  make_masks(config, context);
  if (config.position_embedding == PositionEmbedding::kRope)
    rotary_.emplace(context, rotary_spec(config));
  const auto end_unit = [&] {
    if (sharding_) sharding_->end_unit(*context.parameters);
  };
  if (slot.is_first()) embedding_.emplace(context, config, names);
  end_unit();
  for (int layer = slot.layers.first; layer < slot.layers.end; ++layer) {
    layers_.emplace_back(context, config, names, layer);
    end_unit();
  }
  if (slot.is_last()) make_head(config, names, context);
  end_unit();
  if (sharding_ && config.share_embeddings_and_output_weights) sharding_->tie_last_to_first();
  if (config.share_embeddings_and_output_weights && slot.count > 1 &&
      (slot.is_first() || slot.is_last())) {
    const std::string weight = std::string(names.embedding) + ".weight";
    tied_.push_back({{{0, weight}, {slot.count - 1, weight}}});
  }
}

void Decoder::make_masks(const ModelSection& config, const ModuleContext& context) {
  if (sequence_.size == 1) {
    mask_.emplace(context, config);
    return;
  }
  auto ring =
      std::make_shared<const Ring>(Ring{context.parallel->get_context_model_parallel_group(),
                                        plan_ring(sequence_, config.sliding_window)});
  ring_masks_.emplace(context, sequence_.length, config.sliding_window, std::move(ring));
}

void Decoder::make_head(const ModelSection& config, const ModuleNames& names,
                        const ModuleContext& context) {
  if (config.transformer_block_type != TransformerBlock::kPostLn)
    final_norm_.emplace(context, names.final_norm, config);
  const bool tied = config.share_embeddings_and_output_weights;
  at::Tensor weight;
  if (tied && embedding_) {
    weight = embedding_->word_weight();
  } else {
    const std::string path = tied ? names.embedding : names.head;
    Parameter& parameter = make_parameter(
        context,
        {path + ".weight", {config.vocab_size, config.hidden_size}, 0, 1, config.init_method_std});
    parameter.shared = tied;
    weight = parameter.tensor;
  }
  head_ = ColumnShards{{weight}, {}, entropy_.tp, context.sequence_parallel, context.reduce_dtype};
  if (config.lora && !tied && config.lora->targets_module(names.head))
    head_lora_.emplace(
        context, *config.lora, names.head, config.hidden_size,
        std::vector<ColumnParallelLinear::Output>{{"", std::int64_t{config.vocab_size}}}, "");
}

at::Tensor Decoder::forward(const at::Tensor& input, const MicroBatch& batch) const {
  if (embedding_ && batch.input_ids.size(1) != sequence_.local_length()) {
    throw ConfigError(c10::str("data: a batch has ", batch.input_ids.size(1) * sequence_.size,
                               " tokens per sample, expected model.encoder_seq_length ",
                               sequence_.length,
                               "; make the data's sequences of this length or change the model's"));
  }
  const SequenceContext sequence = sequence_context(batch);
  const bool is_packed = auxiliary_.is_on();
  at::Tensor hidden =
      embedding_  ? run_unit(0, {}, [&](const at::Tensor&) { return embedding_->forward(batch); })
      : is_packed ? unpack(input, sequence.router)
                  : input;
  // A frozen embedding ends backward; recomputed layers need an input that has a gradient.
  if (embedding_ && frozen_ && at::GradMode::is_enabled() && !hidden.requires_grad())
    hidden = hidden.detach().requires_grad_();
  hidden = run_layers(hidden, sequence);
  if (counts_tokens_ && position_->training) count_routed_tokens(*sequence.router);
  if (!head_) return is_packed ? pack_border(hidden, sequence.router) : hidden;
  return run_unit(static_cast<int>(layers_.size()) + 1, hidden, [&](const at::Tensor& last) {
    return loss(final_norm_ ? final_norm_->forward(last) : last, batch, sequence.router);
  });
}

at::Tensor Decoder::run_unit(int unit, const at::Tensor& input,
                             const FullySharding::Module& module) const {
  return sharding_ ? sharding_->run(unit, input, module) : module(input);
}

at::Tensor Decoder::run_layers(at::Tensor hidden, const SequenceContext& sequence) const {
  int unit = 0;
  for (const TransformerLayer& layer : layers_) {
    hidden = run_unit(++unit, hidden,
                      [&](const at::Tensor& input) { return layer.forward(input, sequence); });
  }
  return hidden;
}

at::Tensor Decoder::unpack(const at::Tensor& border,
                           const std::shared_ptr<RouterRecord>& record) const {
  const std::int64_t elements = border.size(0) - packed_elements(auxiliary_, border.scalar_type());
  return unpack_border(border,
                       {local_length_, elements / (local_length_ * hidden_size_), hidden_size_},
                       auxiliary_.experts, record);
}

void Decoder::count_routed_tokens(const RouterRecord& record) const {
  const at::NoGradGuard no_grad;
  for (const auto& [index, layer] : record.layers) {
    const at::Tensor counts = at::stack({layer.assigned, layer.kept});
    RoutedLayer& sum = routed_[index];
    sum.counts = sum.counts.defined() ? sum.counts + counts : counts;
    sum.computed.resize(layer.computed.size());
    for (std::size_t e = 0; e < layer.computed.size(); ++e) sum.computed[e] += layer.computed[e];
  }
}

SequenceContext Decoder::sequence_context(const MicroBatch& batch) const {
  SequenceContext sequence;
  sequence.router = std::make_shared<RouterRecord>();
  if (mask_) sequence.allowed = mask_->allowed(batch.attention_mask);
  if (ring_masks_) sequence.ring = ring_masks_->of(batch.attention_mask);
  if (rotary_) sequence.rotary = rotary_->tables(batch.position_ids);
  return sequence;
}

at::Tensor Decoder::decode(const at::Tensor& input, const DecodeTokens& tokens,
                           KvCache& cache) const {
  SequenceContext sequence;
  sequence.router = std::make_shared<RouterRecord>();
  sequence.allowed = mask_->of_cached_keys(cache.positions(), cache.num_keys(), cache.is_prompt());
  sequence.cache = &cache;
  if (rotary_) sequence.rotary = rotary_->tables(cache.positions());
  at::Tensor hidden =
      embedding_
          ? embedding_->forward(
                {.input_ids = tokens.input_ids, .labels = {}, .position_ids = cache.positions()})
          : input;
  for (const TransformerLayer& layer : layers_) hidden = layer.forward(hidden, sequence);
  if (!head_) return hidden;
  if (tokens.last.defined()) {
    const std::int64_t rows = hidden.size(1);
    const at::Tensor places = tokens.last * rows + at::arange(rows, tokens.last.options());
    hidden = hidden.flatten(0, 1).index_select(0, places).unsqueeze(0);
  }
  return logits_of(final_norm_ ? final_norm_->forward(hidden) : hidden);
}

at::Tensor Decoder::logits_of(const at::Tensor& hidden) const {
  const Scope scope = head_scope_.enter();
  std::vector<at::Tensor> outputs = linear_with_async_communication(hidden, *head_);
  if (head_lora_) head_lora_->add_to(outputs, hidden);
  return head_scope_.leave(outputs[0]);
}

at::Tensor Decoder::loss(const at::Tensor& hidden, const MicroBatch& batch,
                         const std::shared_ptr<RouterRecord>& record) const {
  const at::Tensor logits = logits_of(hidden);
  if (save_logits_) logits_ = logits.detach();
  const Scope scope = loss_scope_.enter();
  if (orpo_ || dpo_) {
    preference_ = orpo_ ? odds_ratio_loss(logits, batch, entropy_, *orpo_)
                        : direct_preference_loss(logits, batch, entropy_, *dpo_);
    return loss_scope_.leave(std::exchange(preference_.loss, {}));
  }
  const at::Tensor sums = masked_loss_sums(logits, batch, entropy_);
  return loss_scope_.leave(
      auxiliary_.is_on()
          ? with_auxiliary_loss(sums, auxiliary_, batch.labels.numel(), record, entropy_.context)
          : sums);
}

}  // namespace trellis::trainer
