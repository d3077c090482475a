#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/formats/hugging_face/hub_config.h"
#include "trainer/files/checkpoint/sharding/sharded_tensor.h"

namespace trellis::checkpoint::hugging_face {

/// A tensor under the name that it has on one of the two sides.
struct NamedTensor {
  std::string name;
  Shape shape;
  bool is_table = false;  ///< has a row per token of the vocabulary, which may be padded
  bool operator==(const NamedTensor&) const = default;
};

/// A box of a tensor of Hugging Face that is a box of a native one; axes of length 1 do not count.
struct MapPiece {
  std::size_t hub = 0, native = 0;  ///< indices of the map's tensors
  Box hub_box, native_box;
  bool transposed = false;  ///< rows of one are columns of the other
  bool operator==(const MapPiece&) const = default;
};

/// The common part of a piece and a box of one of its tensors, as a box of both tensors; the shapes
/// contain a 0 where the two do not overlap.
struct PiecePart {
  Box hub, native;
};
[[nodiscard]] PiecePart part_in_native(const MapPiece& piece, const Box& native);
[[nodiscard]] PiecePart part_in_hub(const MapPiece& piece, const Box& hub);

/// Which tensors a model has on the hub and here, and which part of which is the same. Every
/// element of each is in one piece. GPT-2's Conv1D [in, q|k|v] and what it is here, per head:
///
///   hub   c_attn.weight columns   q0 q1 | k0 k1 | v0 v1
///   here  query_key_value rows    q0 k0 v0 | q1 k1 v1
struct WeightMap {
  std::vector<NamedTensor> hub;     ///< in the order of transformers' state_dict()
  std::vector<NamedTensor> native;  ///< in the order of `hub`
  std::vector<MapPiece> pieces;     ///< by hub tensor
  bool operator==(const WeightMap&) const = default;
};

/// `prefix`: before the names of the base model, "model." or "transformer."; some folders have
/// none. An output layer is in it when the embedding does not serve as one, or `with_head`.
[[nodiscard]] WeightMap weight_map(const HubConfig& config, const std::string& prefix,
                                   bool with_head);

/// The usual prefix of a family.
[[nodiscard]] std::string base_prefix(const HubConfig& config);
/// Name of the hub's word embedding and output layer.
[[nodiscard]] std::string embedding_name(const HubConfig& config, const std::string& prefix);
inline constexpr const char* kHead = "lm_head.weight";

}  // namespace trellis::checkpoint::hugging_face
