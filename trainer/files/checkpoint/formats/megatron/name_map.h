#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/sharding/sharded_tensor.h"

/// Megatron-core's names and shapes of a decoder's weights.
namespace trellis::checkpoint::megatron {

/// Rows (indices of dimension 0) of a tensor of Megatron that are rows of a native one.
struct RowBlock {
  std::string key;  ///< native
  std::int64_t first = 0, native_first = 0, rows = 0;
  bool operator==(const RowBlock&) const = default;
};

/// A weight of Megatron-core, without the axes of the layers and of the experts.
struct MegatronWeight {
  std::string key;  ///< "embedding.word_embeddings.weight", "self_attention.linear_qkv.weight"
  std::int64_t layer = -1;  ///< −1: of no layer
  Shape shape;
  std::vector<RowBlock> blocks;           ///< cover the rows, in order
  std::int64_t expert = -1, experts = 0;  ///< which one of how many; −1: of no expert
  bool operator==(const MegatronWeight&) const = default;
};

/// How a folder has the layers of a model.
struct LayerAxis {
  std::int64_t layers = 0;
  bool is_there = true;  ///< false: layers differ, and each has its number in keys instead
};

/// Where a weight is in a folder.
struct MegatronPlace {
  std::string key;  ///< of a tensor: "decoder.layers.mlp.linear_fc1.weight"
  Shape shape;      ///< of the tensor
  Shape lead;       ///< of the weight, along the axes that it does not have
  /// A box of the weight, in the tensor.
  [[nodiscard]] Box box(const Box& of_weight) const;
};
[[nodiscard]] MegatronPlace place_of(const MegatronWeight& weight, const LayerAxis& axis);

/// Key without layer → shape (without the axis of layers), layer → the same. Experts' shapes have
/// their axis.
using ShapeOf = std::map<std::string, Shape>;
/// "decoder.layers.3.mlp.linear_fc1.weight"
[[nodiscard]] std::string key_with_layer(const MegatronWeight& weight);
/// Layers have one axis where all have the same weights. REQUIRES: weights of the whole model.
[[nodiscard]] LayerAxis axis_of(const std::vector<MegatronWeight>& weights);

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
/// or of a model of NxDT's Megatron family. An expert has one for each of its matrices. The norm
/// before a mixture has two, since models with transformer_engine and without have other names for
/// it. Throws ConfigError with every weight that has no place there, and for heads that do not
/// divide the rows.
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
