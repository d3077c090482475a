#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/sharding/sharded_tensor.h"

/// What Megatron-core calls the weights of a decoder, and how it lays them out.
namespace trellis::checkpoint::megatron {

/// Rows (indices of dimension 0) of a tensor of Megatron that are rows of a native one.
struct RowBlock {
  std::string key;  ///< native
  std::int64_t first = 0, native_first = 0, rows = 0;
  bool operator==(const RowBlock&) const = default;
};

/// A weight of Megatron-core, without the axis of the layers.
struct MegatronWeight {
  std::string key;  ///< "embedding.word_embeddings.weight", "self_attention.linear_qkv.weight"
  std::int64_t layer = -1;  ///< −1: of no layer
  Shape shape;
  std::vector<RowBlock> blocks;  ///< cover the rows, in order
  bool operator==(const MegatronWeight&) const = default;
};

/// Key without layer → shape (without the axis of layers), layer → the same.
using ShapeOf = std::map<std::string, Shape>;

/// Attention heads: a fused qkv has, for each of kv_heads groups, the rows of its queries, its key
/// and its value.
struct AttentionSizes {
  std::int64_t heads = 0;     ///< 0: not known
  std::int64_t kv_heads = 0;  ///< 0: as many as heads
  [[nodiscard]] std::int64_t groups() const { return kv_heads > 0 ? kv_heads : heads; }
  bool operator==(const AttentionSizes&) const = default;
};

inline constexpr const char* kLayers = "decoder.layers.";

/// The weights of Megatron-core that hold the native weights `shapes`, which are those of a Llama
/// or of a model of NxDT's Megatron family. Throws ConfigError with every weight that has no place
/// there, and for heads that do not divide the rows.
[[nodiscard]] std::vector<MegatronWeight> to_megatron(const ShapeOf& shapes,
                                                      const AttentionSizes& attention,
                                                      const std::string& where);

/// The same weights, seen from Megatron-core's: `shapes` of keys outside of layers, and of those of
/// one layer each, "decoder.layers.3.mlp.linear_fc1.weight". A model with RMS norms, a gate and no
/// learned positions becomes a Llama, another one a model of the Megatron family. A key that the
/// map does not know keeps its name.
[[nodiscard]] std::vector<MegatronWeight> from_megatron(const ShapeOf& shapes,
                                                        const AttentionSizes& attention,
                                                        const std::string& where);

}  // namespace trellis::checkpoint::megatron
