#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/formats/tensor_source.h"

namespace trellis::checkpoint::adapters {

/// The adapter of one module of a Hugging Face model: weight += scale · B · A. Layers that hold
/// several modules in one weight (gate|up, q|k|v) share an A, and each module has rows of the B.
struct AdapterSlice {
  std::string module;                    ///< "model.layers.0.mlp.gate_proj"
  TensorEntry a;                         ///< [rank, in]; of an embedding [vocabulary, rank]
  TensorEntry b;                         ///< [out, rank]
  std::int64_t first_row = 0, rows = 0;  ///< of B
  bool embedding = false;                ///< the weight has a row per token: += scale · A · Bᵀ
  [[nodiscard]] std::int64_t rank() const { return embedding ? a.shape[1] : a.shape[0]; }
};

/// True if `key` is that of an adapter's weight, or of an optimizer state of one.
[[nodiscard]] bool is_adapter_key(const std::string& key);

/// All adapters of a training's checkpoint, by module. Throws ConfigError with every problem: an A
/// without a B, shapes that do not fit, the model that they are of is not there, and modules that
/// no family of Hugging Face has.
[[nodiscard]] std::vector<AdapterSlice> adapters_of(const TensorSource& source);

}  // namespace trellis::checkpoint::adapters
