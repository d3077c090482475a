#pragma once

#include <memory>

#include "trainer/files/checkpoint/formats/megatron/name_map.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"

namespace trellis::checkpoint::megatron {

/// A Llama whose weights have the names and forms of NxDT's class for all Megatron models,
/// "language_model.encoder.layers.0.self_attention.query_key_value.weight", under those of a Llama.
/// Throws ConfigError for weights that are none of a Llama's.
[[nodiscard]] std::unique_ptr<TensorSource> as_llama(std::unique_ptr<TensorSource> source,
                                                     const AttentionSizes& attention);

}  // namespace trellis::checkpoint::megatron
