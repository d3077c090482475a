#pragma once

#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "trainer/config/model_section.h"
#include "trainer/models/decoder/preference_losses.h"
#include "trainer/modules/embedding.h"
#include "trainer/modules/moe/router_record.h"
#include "trainer/modules/transformer/transformer_layer.h"
#include "trainer/parallel_layers/fully_sharded.h"
#include "trainer/parallel_layers/lora.h"
#include "trainer/parallel_layers/loss_functions.h"
#include "trainer/pipeline/stage.h"

namespace trellis::trainer {

/// [Σ loss · weight, Σ weight] over the labels that are not −100. Logits [s, b, v/TP]; the weights
/// are batch.loss_mask.
at::Tensor masked_loss_sums(const at::Tensor& logits, const MicroBatch& batch,
                            const EntropyContext& context);
/// The first of these sums divided by the second; 0 when no label counts.
at::Tensor masked_mean_loss(const at::Tensor& logits, const MicroBatch& batch,
                            const EntropyContext& context);

/// One pipeline stage of a decoder: embedding on the first stage, its layers, final norm, head and
/// loss on the last one (post_ln has no final norm). Parameter names are global:
/// "model.layers.3.self_attn.o_proj.weight" on whichever stage.
///
/// Fully sharded, the stage is the whole model, and its units are the embedding, each layer, and
/// the head with the final norm.
///
/// With an auxiliary loss the border to the next stage is flat: activations and the sums of the
/// routers so far, see pack_border().
///
/// share_embeddings_and_output_weights: the head reads the word embedding. When they lie on two
/// stages the last one holds a copy under the same name, marked Parameter::shared: tied_weights().
class Decoder : public PipelineStage {
 public:
  Decoder(const ModelSection& config, const ModuleNames& names, const ModuleContext& context,
          const StageSlot& slot);
  /// Throws ConfigError for samples of another length than the model's.
  [[nodiscard]] at::Tensor forward(const at::Tensor& input, const MicroBatch& batch) const override;
  [[nodiscard]] at::Tensor decode(const at::Tensor& input, const DecodeTokens& tokens,
                                  KvCache& cache) const override;
  [[nodiscard]] bool weighs_its_loss() const override { return !orpo_ && !dpo_; }
  [[nodiscard]] std::int64_t num_metrics() const override { return num_metrics_; }
  [[nodiscard]] at::Tensor metrics() const override { return preference_.metrics; }
  [[nodiscard]] at::Tensor log_probs() const override { return preference_.log_probs; }
  [[nodiscard]] at::Tensor logits() const override { return logits_; }
  [[nodiscard]] std::map<int, RoutedLayer> take_routed_tokens() const override {
    return std::exchange(routed_, {});
  }
  [[nodiscard]] std::vector<TiedWeight> tied_weights() const override { return tied_; }

 private:
  void make_masks(const ModelSection& config, const ModuleContext& context);
  void make_head(const ModelSection& config, const ModuleNames& names,
                 const ModuleContext& context);
  [[nodiscard]] SequenceContext sequence_context(const MicroBatch& batch) const;
  [[nodiscard]] at::Tensor logits_of(const at::Tensor& hidden) const;
  [[nodiscard]] at::Tensor loss(const at::Tensor& hidden, const MicroBatch& batch,
                                const std::shared_ptr<RouterRecord>& record) const;
  [[nodiscard]] at::Tensor unpack(const at::Tensor& border,
                                  const std::shared_ptr<RouterRecord>& record) const;
  void count_routed_tokens(const RouterRecord& record) const;
  [[nodiscard]] at::Tensor run_unit(int unit, const at::Tensor& input,
                                    const FullySharding::Module& module) const;
  [[nodiscard]] at::Tensor run_layers(at::Tensor hidden, const SequenceContext& sequence) const;

  EntropyContext entropy_;
  SequenceShard sequence_;
  bool save_logits_, frozen_;  ///< frozen: only adapters are trained
  std::optional<OrpoSection> orpo_;
  std::optional<DpoSection> dpo_;
  std::int64_t num_metrics_;
  AuxiliaryLoss auxiliary_;
  bool counts_tokens_;  ///< of routers
  std::int64_t hidden_size_, local_length_;
  std::shared_ptr<StepPosition> position_;
  std::optional<AttentionMask> mask_;    ///< of a whole sequence
  std::optional<RingMasks> ring_masks_;  ///< with context parallelism, in its place
  std::optional<RotaryEmbedding> rotary_;
  std::shared_ptr<FullySharding> sharding_;  ///< null: weights are whole
  std::optional<LanguageModelEmbedding> embedding_;
  std::deque<TransformerLayer> layers_;
  std::optional<Norm> final_norm_;
  std::optional<ColumnShards> head_;
  std::optional<ColumnParallelLora> head_lora_;
  LayerScope head_scope_;
  LayerScope loss_scope_;
  std::vector<TiedWeight> tied_;
  mutable std::map<int, RoutedLayer> routed_;
  mutable at::Tensor logits_;
  mutable PreferenceLoss preference_;  ///< of the last forward pass; its loss has left
};

}  // namespace trellis::trainer
