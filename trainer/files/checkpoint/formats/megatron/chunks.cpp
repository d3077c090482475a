#include "trainer/files/checkpoint/formats/megatron/chunks.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint::megatron {
namespace {

Shape without_rows(const Shape& shape) { return {shape.begin() + 1, shape.end()}; }

/// True if the rows of `b` follow those of `a`, in the same columns.
bool follows(const Box& a, const Box& b) {
  return a.offset[0] + a.shape[0] == b.offset[0] &&
         without_rows(a.offset) == without_rows(b.offset) &&
         without_rows(a.shape) == without_rows(b.shape);
}

}  // namespace

ChunkMap::ChunkMap(const ShapeOf& shapes, const AttentionSizes& attention, const LayerAxis& axis,
                   const std::string& where)
    : shapes_(shapes), where_(where), axis_(axis), weights_(to_megatron(shapes, attention, where)) {
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    for (std::size_t block = 0; block < weights_[i].blocks.size(); ++block)
      blocks_.emplace(weights_[i].blocks[block].key, std::pair(i, block));
  }
}

void ChunkMap::add_pieces(const LocalPart& part, const std::string& key,
                          std::vector<Piece>& pieces) const {
  const ShardedTensor& tensor = part.part.tensor;
  const auto shape = shapes_.find(key);
  if (shape == shapes_.end() || shape->second != tensor.global_shape || tensor.global_shape.empty())
    throw ConfigError(where_ + ": " + tensor.key + " is " + text_of(tensor.global_shape) +
                      ", and its weight " +
                      (shape == shapes_.end() ? "is not there" : text_of(shape->second)) +
                      ": Megatron-core has states in the shape of their weights alone");
  const std::int64_t begin = tensor.global_offset[0], end = begin + part.part.local.shape[0];
  const auto [first, last] = blocks_.equal_range(key);
  for (auto it = first; it != last; ++it) {
    const auto [weight, number] = it->second;
    const RowBlock& block = weights_[weight].blocks[number];
    const std::int64_t from = std::max(begin, block.native_first),
                       to = std::min(end, block.native_first + block.rows);
    if (from >= to) continue;
    Piece piece{weight,
                {tensor.global_offset, part.part.local.shape},
                tensor.dtype,
                part.tensor,
                part.part.local};
    piece.box.offset[0] = block.first + from - block.native_first;
    piece.local.offset[0] += from - begin;
    piece.box.shape[0] = piece.local.shape[0] = to - from;
    pieces.push_back(std::move(piece));
  }
}

Chunk ChunkMap::chunk_of(const std::string& state, const Piece& piece) const {
  const MegatronPlace place = place_of(weights_[piece.weight], axis_);
  return {(state.empty() ? "" : state_prefix(state)) + place.key,
          place.shape,
          place.box(piece.box),
          piece.dtype,
          {{piece.tensor, piece.local}}};
}

std::vector<Chunk> ChunkMap::chunks_of(const std::string& state,
                                       const std::vector<LocalPart>& parts) const {
  std::vector<Piece> pieces;
  for (const LocalPart& part : parts)
    add_pieces(part, parse_state_key(part.part.tensor.key).weight, pieces);
  std::ranges::sort(pieces, {}, [](const Piece& piece) {
    return std::tuple(piece.weight, without_rows(piece.box.offset), piece.box.offset[0]);
  });
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < pieces.size();) {
    Piece whole = pieces[i];
    std::vector<std::pair<std::size_t, Box>> slices{{whole.tensor, whole.local}};
    for (++i; i < pieces.size() && pieces[i].weight == whole.weight &&
              pieces[i].dtype == whole.dtype && follows(whole.box, pieces[i].box);
         ++i) {
      whole.box.shape[0] += pieces[i].box.shape[0];
      slices.emplace_back(pieces[i].tensor, pieces[i].local);
    }
    chunks.push_back(chunk_of(state, whole));
    chunks.back().slices = std::move(slices);
  }
  return chunks;
}

}  // namespace trellis::checkpoint::megatron
