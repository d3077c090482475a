#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// Parameters of a rotary embedding: the rotated part of a head, and the angles.
struct RotarySpec {
  std::int64_t head_dim = 0;
  std::int64_t sequence_length = 0;  ///< positions 0 … sequence_length − 1, of all ranks
  std::int64_t max_position_embeddings =
      0;  ///< of the model; scaling counts from them when it names no original ones
  double theta = 10000;
  double percentage = 1;  ///< share of the head that rotates, from its start; the rest passes
  RopeScaling scaling = {};
};

/// Angle per position of each pair: [head_dim · percentage / 2] in fp64, after scaling.
///   default   theta^(−2i/d)
///   linear    that / factor (Megatron's interpolation factor)
///   dynamic   theta grows with the sequence beyond the original positions m: theta ·
///             (factor·s/m − factor + 1)^(d/(d−2))
///   llama3    long waves / factor, short waves unchanged, a smooth passage between
/// As Hugging Face's rope types compute them for one sequence length. Throws ConfigError for
/// another type.
[[nodiscard]] at::Tensor inverse_frequencies(const RotarySpec& spec);

/// Cosines and sines of one micro-batch's positions; the same for all layers.
struct RotaryTables {
  at::Tensor cos;  ///< [s, 1 or b, 1, head_dim]; ones where nothing rotates
  at::Tensor sin;  ///< [s, 1 or b, 1, head_dim · percentage / 2]
};

/// Rotary position embedding in the rotate-half convention: the pair (x_i, x_{i+d/2}) at position p
/// rotates by p · frequency_i. The tables are computed in fp64 once and kept in the run's type.
class RotaryEmbedding {
 public:
  RotaryEmbedding(const ModuleContext& context, const RotarySpec& spec);
  /// `position_ids`: [b, s] int64; undefined: those of this rank's part of the sequence.
  [[nodiscard]] RotaryTables tables(const at::Tensor& position_ids) const;

 private:
  [[nodiscard]] RotaryTables own_part(const ModuleContext& context) const;
  at::Tensor cos_;    ///< [sequence_length, head_dim]
  at::Tensor sin_;    ///< [sequence_length, head_dim · percentage / 2]
  RotaryTables own_;  ///< of this rank's part, in every sample
};

/// Rotates [s, b, heads, head_dim] → the same.
[[nodiscard]] at::Tensor apply_rotary(const at::Tensor& input, const RotaryTables& tables);

}  // namespace trellis::trainer
