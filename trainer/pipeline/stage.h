#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/config/schedule/partition.h"
#include "trainer/data/data_module.h"

namespace trellis::trainer {

/// Which part of the model a stage is. With virtual stages a rank holds several: stage i lives on
/// pipeline rank i mod PP.
struct StageSlot {
  int index = 0;
  int count = 1;  ///< PP · VPP
  LayerRange layers;
  [[nodiscard]] bool is_first() const { return index == 0; }
  [[nodiscard]] bool is_last() const { return index == count - 1; }
};

/// The mean loss from [Σ weight · loss, Σ weight]; 0, not 0/0, when nothing counts.
[[nodiscard]] inline at::Tensor weighted_mean(const at::Tensor& sums) {
  return sums[0] / (sums[1] + sums[1].eq(0).to(sums.scalar_type()));
}

/// A weight of which several places of the model hold a copy: an embedding that is also the head.
struct TiedWeight {
  struct Copy {
    int stage = 0;
    std::string parameter;  ///< its name; all copies may have one name
  };
  std::vector<Copy> copies;  ///< the first one owns the values
};

class KvCache;

/// Tokens of a pass of decoding, on the device. Their positions are those of the cache.
struct DecodeTokens {
  at::Tensor input_ids;  ///< [b, s] int64; read by the first stage
  at::Tensor last = {};  ///< [b] int64: of each row's tokens, the one whose logits are asked for;
                         ///< undefined: there is one only
};

/// Picks of a layer's router on a rank.
struct RoutedLayer {
  at::Tensor counts;  ///< [2, experts] int64: picks, and those within the capacity
  /// By expert: rows that were computed for it, on the host; see RouterRecord::Layer.
  std::vector<std::int64_t> computed;
};

/// The pipeline engine's interface of a model: the part of it that lives on one pipeline stage. A
/// model is made trainable by one class that derives from this and builds only its stage's modules.
class PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  /// `input`: the previous stage's output; undefined on the first stage, which reads
  /// `batch.input_ids`. `batch` is on the device; only what the stage may read is defined: ids on
  /// the first stage, labels and loss mask on the last, positions and attention mask on all.
  /// Returns this stage's output; on the last stage the micro-batch's loss: one number, or two
  /// when weighs_its_loss().
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& input,
                                           const MicroBatch& batch) const = 0;
  /// Forward of tokens that follow those in `cache`, without gradients: this stage's output [s, b,
  /// h], on the last stage the logits of one token per row, [1, b, v/TP]. Throws ConfigError for a
  /// model that does not decode.
  [[nodiscard]] virtual at::Tensor decode(const at::Tensor& input, const DecodeTokens& tokens,
                                          KvCache& cache) const;
  /// True if the last stage's forward() returns [Σ weight · loss, Σ weight] over the labels that
  /// count: the loss of a step is then the first sum over its global batch, divided by the second
  /// once. Otherwise each micro-batch counts alike. The same on every stage.
  [[nodiscard]] virtual bool weighs_its_loss() const { return false; }
  /// Logits of the last forward pass, [s, b, v/TP] without a gradient, when the model was asked to
  /// save them (model.save_logits); else undefined.
  [[nodiscard]] virtual at::Tensor logits() const { return {}; }
  /// Numbers that each micro-batch gives next to its loss, such as rewards; the same on every
  /// stage.
  [[nodiscard]] virtual std::int64_t num_metrics() const { return 0; }
  /// The metrics of the last forward pass, [num_metrics()] without a gradient; on the last stage.
  [[nodiscard]] virtual at::Tensor metrics() const { return {}; }
  /// Log-probability of each row's labels in the last forward pass over preference pairs, [rows];
  /// on the last stage.
  [[nodiscard]] virtual at::Tensor log_probs() const { return {}; }
  /// Picks of the routers of this stage's layers in the training passes since the last call, by
  /// layer of the whole model. Empty without data.
  [[nodiscard]] virtual std::map<int, RoutedLayer> take_routed_tokens() const { return {}; }
  /// The tied weights of which this stage holds a copy, with all their copies. Whoever builds the
  /// model keeps them equal: see TiedWeights.
  [[nodiscard]] virtual std::vector<TiedWeight> tied_weights() const { return {}; }
};

}  // namespace trellis::trainer
