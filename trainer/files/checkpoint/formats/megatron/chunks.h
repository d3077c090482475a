#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trainer/files/checkpoint/formats/megatron/name_map.h"
#include "trainer/files/checkpoint/sharding/sharded_tensor.h"

namespace trellis::checkpoint::megatron {

/// A part of a local tensor, by the tensor's number.
struct LocalPart {
  std::size_t tensor = 0;
  ShardedPart part;
};

/// A box of a tensor of Megatron-core that boxes of local tensors fill, one after the other along
/// its rows.
struct Chunk {
  std::string key;     ///< "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight"
  Shape global_shape;  ///< with the axes of layers and experts
  Box box;
  DType dtype = DType::kFloat32;
  std::vector<std::pair<std::size_t, Box>> slices;  ///< number of a local tensor, box in it
  [[nodiscard]] std::int64_t bytes() const { return box.elements() * element_bytes(dtype); }
};

/// Where parts of native tensors lie in those of Megatron-core, for a rank that writes what it has.
class ChunkMap {
 public:
  /// `shapes`: of all weights of the layers that are mapped. `axis`: of the whole model. Throws
  /// ConfigError as to_megatron().
  ChunkMap(const ShapeOf& shapes, const AttentionSizes& attention, const LayerAxis& axis,
           const std::string& where);

  /// Chunks for parts of one state ("": the weights). Throws ConfigError for a state whose shape is
  /// not that of its weight: Megatron-core has no place for it.
  [[nodiscard]] std::vector<Chunk> chunks_of(const std::string& state,
                                             const std::vector<LocalPart>& parts) const;

 private:
  struct Piece {
    std::size_t weight = 0;
    Box box;  ///< without the axes of layers and experts
    DType dtype = DType::kFloat32;
    std::size_t tensor = 0;
    Box local;
  };
  void add_pieces(const LocalPart& part, const std::string& key, std::vector<Piece>& pieces) const;
  [[nodiscard]] Chunk chunk_of(const std::string& state, const Piece& piece) const;

  ShapeOf shapes_;
  std::string where_;
  LayerAxis axis_;
  std::vector<MegatronWeight> weights_;
  std::multimap<std::string, std::pair<std::size_t, std::size_t>> blocks_;  ///< by native key
};

}  // namespace trellis::checkpoint::megatron
