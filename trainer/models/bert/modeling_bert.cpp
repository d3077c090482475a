#include "trainer/models/bert/modeling_bert.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/tanh.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/models/decoder/decoder.h"
#include "trainer/parallel_layers/loss_functions.h"

namespace trellis::trainer {
namespace {

constexpr ModuleNames kBertNames{
    .embedding = "bert.embeddings.word_embeddings",
    .position_embedding = "bert.embeddings.position_embeddings",
    .layers = "bert.encoder.layer",
    .attention = "attention",
    .qkv = QkvLayout::kSeparate,
    .attention_output = "dense",
    .mlp_input = "intermediate",
    .mlp_output = "output",
    .final_norm = "",
    .head = "cls.predictions",
};

at::Tensor make_bert_weight(const ModuleContext& context, const std::string& name,
                            std::int64_t rows, const ModelSection& config) {
  return make_parameter(
             context, {name + ".weight", {rows, config.hidden_size}, -1, 1, config.init_method_std})
      .tensor;
}

at::Tensor make_decoder_bias(const ModuleContext& context, const ModelSection& config) {
  Parameter& bias = make_parameter(
      context,
      {std::string(kBertNames.head) + ".bias", {config.vocab_size}, 0, 1, WeightInit::zeros()});
  bias.weight_decay = context.decay_biases;
  return bias.tensor;
}

ColumnParallelLinear linear(const ModuleContext& context, const std::string& path,
                            std::int64_t outputs, const ModelSection& config) {
  return {context,
          path,
          config.hidden_size,
          {{"", outputs}},
          {.init = config.init_method_std, .gather_output = false}};
}

}  // namespace

const ModuleNames& BertForPreTraining::names() { return kBertNames; }

BertForPreTraining::BertForPreTraining(const ModelSection& config, const ModuleContext& context,
                                       const StageSlot& slot)
    : entropy_{context.tp(), context.wide_dtype},
      sequence_length_(config.encoder_seq_length),
      save_logits_(config.save_logits),
      words_(context, kBertNames.embedding, config.vocab_size, config.hidden_size,
             ParallelEmbeddingOptions{.init = config.init_method_std, .padding_idx = 0}),
      position_weight_(make_bert_weight(context, kBertNames.position_embedding,
                                        config.max_position_embeddings, config)),
      type_weight_(make_bert_weight(context, "bert.embeddings.token_type_embeddings",
                                    config.type_vocab_size, config)),
      embedding_norm_(context, "bert.embeddings.LayerNorm", config),
      embedding_dropout_(context, "bert.embeddings.dropout", config.hidden_dropout),
      pooler_(linear(context, "bert.pooler.dense", config.hidden_size, config)),
      transform_(linear(context, std::string(kBertNames.head) + ".transform.dense",
                        config.hidden_size, config)),
      transform_norm_(context, std::string(kBertNames.head) + ".transform.LayerNorm", config),
      decoder_bias_(make_decoder_bias(context, config)),
      next_sentence_(linear(context, "cls.seq_relationship", 2, config)),
      embedding_scope_(context.scope("bert.embeddings")),
      head_scope_(context.scope("cls")),
      loss_scope_(context.scope("loss")) {
  if (slot.count > 1 || context.tp().size > 1) {
    throw ConfigError(
        c10::str("model: BERT trains with data parallelism alone: expected 1 pipeline stage and 1 "
                 "tensor-parallel rank, got ",
                 slot.count, " and ", context.tp().size));
  }
  for (int layer = slot.layers.first; layer < slot.layers.end; ++layer)
    layers_.emplace_back(context, config, kBertNames, layer);
}

at::Tensor BertForPreTraining::forward(const at::Tensor&, const MicroBatch& batch) const {
  if (batch.input_ids.size(1) != sequence_length_) {
    throw ConfigError(c10::str("data: a batch has ", batch.input_ids.size(1),
                               " tokens per sample, expected model.encoder_seq_length ",
                               sequence_length_));
  }
  SequenceContext sequence;
  if (batch.attention_mask.defined())
    sequence.allowed = batch.attention_mask.ne(0).unsqueeze(1).unsqueeze(1);
  at::Tensor hidden = embed(batch);
  for (const TransformerLayer& layer : layers_) hidden = layer.forward(hidden, sequence);
  return masked_token_loss(hidden, batch) + next_sentence_loss(hidden, batch);
}

/// [s, b, h]
at::Tensor BertForPreTraining::embed(const MicroBatch& batch) const {
  const Scope scope = embedding_scope_.enter();
  at::Tensor hidden = words_.forward(batch.input_ids);
  hidden = hidden + (batch.token_type_ids.defined()
                         ? at::embedding(type_weight_, batch.token_type_ids.t())
                         : type_weight_.narrow(0, 0, 1).unsqueeze(1));
  hidden = hidden + (batch.position_ids.defined()
                         ? at::embedding(position_weight_, batch.position_ids.t())
                         : position_weight_.narrow(0, 0, sequence_length_).unsqueeze(1));
  return embedding_scope_.leave(embedding_dropout_.forward(embedding_norm_.forward(hidden)));
}

at::Tensor BertForPreTraining::masked_token_loss(const at::Tensor& hidden,
                                                 const MicroBatch& batch) const {
  at::Tensor logits;
  {
    const Scope scope = head_scope_.enter();
    const at::Tensor transformed = transform_norm_.forward(at::gelu(transform_.forward(hidden)[0]));
    const ColumnShards decoder{
        {words_.weight()}, {decoder_bias_}, entropy_.tp, false, transformed.scalar_type()};
    logits = head_scope_.leave(linear_with_async_communication(transformed, decoder)[0]);
  }
  if (save_logits_) logits_ = logits.detach();
  const Scope scope = loss_scope_.enter();
  return loss_scope_.leave(masked_mean_loss(logits, batch, entropy_));
}

at::Tensor BertForPreTraining::next_sentence_loss(const at::Tensor& hidden,
                                                  const MicroBatch& batch) const {
  TORCH_CHECK(batch.next_sentence_labels.defined(),
              "data: a batch for BERT has no next_sentence_labels");
  const Scope scope = head_scope_.enter();
  const at::Tensor logits =
      next_sentence_.forward(at::tanh(pooler_.forward(hidden.select(0, 0))[0]))[0];
  return head_scope_.leave(parallel_cross_entropy(logits, batch.next_sentence_labels, entropy_.tp,
                                                  {.entry_dtype = entropy_.entry_dtype})
                               .mean());
}

}  // namespace trellis::trainer
