#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"
#include "trainer/parallel_layers/dropout.h"
#include "trainer/parallel_layers/parameter.h"
#include "trainer/parallel_layers/ring_attention.h"

namespace trellis::trainer {

/// Which keys a query may read: itself and the past; with a window the last `window` of them,
/// itself included; with an attention mask those of its document.
class AttentionMask {
 public:
  AttentionMask(const ModuleContext& context, const ModelSection& config);
  /// Table of one micro-batch, the same for all layers: [s, s] or [b, 1, s, s]. For an explicit
  /// softmax bool, true where a query (row) may read a key (column); for a fused attention what is
  /// added to the scores, 0 there and −∞ elsewhere, of the activations' dtype. Undefined: causal,
  /// nothing more. `attention_mask`: see MicroBatch.
  [[nodiscard]] at::Tensor allowed(const at::Tensor& attention_mask) const;
  /// Decoding: which of the keys 0 … `keys` − 1 the queries at `positions` [b, s] may read, [b, 1,
  /// s, keys]. `prompt`: the queries are those keys, one after the other, and the table is as
  /// above; else it is bool, for attend_from_cache().
  [[nodiscard]] at::Tensor of_cached_keys(const at::Tensor& positions, std::int64_t keys,
                                          bool prompt) const;

 private:
  [[nodiscard]] at::Tensor causal_table() const;
  [[nodiscard]] at::Tensor within_reach(const at::Tensor& distance) const;
  [[nodiscard]] at::Tensor as_attention_takes_it(const at::Tensor& table) const;
  std::optional<at::ScalarType> added_;  ///< dtype of what is added to scores; none: bool
  at::Tensor positions_;                 ///< [s] int64
  std::optional<int> window_;            ///< only one that is shorter than the sequence
  at::Tensor table_;  ///< [s, s] bool; undefined when a micro-batch without documents needs none
  at::Tensor window_only_;  ///< table_, as attention takes it
};

/// The ring of context-parallel ranks that compute an attention together, and its masks.
struct RingContext {
  std::shared_ptr<const Ring> ring;  ///< null: each rank has the whole sequence
  std::vector<at::Tensor> masks;     ///< see ring_attention()
};

/// The masks of a ring: what AttentionMask is for a whole sequence. Only blocks that need one have
/// one: where the sliding window ends, and everywhere when a micro-batch has documents.
class RingMasks {
 public:
  RingMasks(const ModuleContext& context, std::int64_t sequence_length, std::optional<int> window,
            std::shared_ptr<const Ring> ring);
  /// `attention_mask`: see MicroBatch; of the whole sequence, [b, s].
  [[nodiscard]] RingContext of(const at::Tensor& attention_mask) const;

 private:
  [[nodiscard]] at::Tensor mask_of(const RingStep& step, const at::Tensor& attention_mask) const;
  SequenceShard sequence_;
  std::optional<std::int64_t> window_;
  std::shared_ptr<const Ring> ring_;
  at::ScalarType dtype_;
  at::Tensor positions_;                ///< [s] int64
  std::vector<at::Tensor> of_windows_;  ///< per step, for micro-batches without documents
};

/// softmax(Q·Kᵀ/sqrt(d)) · V: query [s, b, n, d], key and value [s, b, n_kv, d], n a multiple of
/// n_kv → [s, b, n·d]. Query head i attends with key/value head i / (n / n_kv).
///   flash_attention   one fused operation, so that a device may run it as flash attention
///   ring_attention    the same; with context parallelism one for each block of the ring
///   otherwise, and with attention_dropout, whose masks belong to the probabilities:
///                     explicit softmax in the context's wide_dtype.
///                     apply_query_key_layer_scaling: scores are divided by the layer's number
///                     before they are stored, and multiplied back
class CoreAttention {
 public:
  /// `layer`: its index, from 0. `query_heads`: those of this rank in the order it holds them, for
  /// the masks of dropout.
  CoreAttention(const ModuleContext& context, const std::string& path, const ModelSection& config,
                int layer, ShardPlace query_heads);
  /// `allowed`: AttentionMask::allowed(). Undefined: a decoder's queries read the past, an
  /// encoder's everything. With a ring its masks take the place of `allowed`.
  [[nodiscard]] at::Tensor forward(const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value, const at::Tensor& allowed,
                                   const RingContext& ring = {}) const;
  /// The same of one token per row, query [1, b, n, d], without gradients: explicit softmax, as for
  /// a fused attention there is too little to do. `allowed`: AttentionMask::of_cached_keys().
  [[nodiscard]] at::Tensor attend_from_cache(const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor& value,
                                             const at::Tensor& allowed) const;

 private:
  [[nodiscard]] at::Tensor attend(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const at::Tensor& allowed) const;
  [[nodiscard]] at::Tensor fused(const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, const at::Tensor& allowed) const;
  [[nodiscard]] at::Tensor explicit_attention(const at::Tensor& query, const at::Tensor& key,
                                              const at::Tensor& value,
                                              const at::Tensor& allowed) const;
  bool explicit_, causal_;
  std::optional<at::ScalarType> wide_dtype_;
  double layer_scaling_;  ///< 1, or the layer's number from 1
  Dropout dropout_;       ///< of probabilities [b, n, s, s]
  ShardPlace query_heads_;
  bool recompute_;
  std::shared_ptr<StepPosition> position_;
};

}  // namespace trellis::trainer
