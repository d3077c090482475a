#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/compiler/graph/graph.h"

namespace trellis::device {

/// The part of a layer path that distinguishes layers of a model: up to its first number.
/// "model.layers.3.mlp" → "model.layers.3", "" without one.
[[nodiscard]] std::string_view numbered_layer(std::string_view path);

/// Nodes [first, end) of a graph: operations of one layer, or a single communication node.
struct Piece {
  std::uint32_t first = 0, end = 0;
  bool operator==(const Piece&) const = default;
};

/// Cuts a graph where the core is idle anyhow (communication nodes) and at the borders of layers,
/// so that equal layers become equal pieces, which are compiled and timed once. Nothing is on chip
/// at a border, and every semaphore is 0.
class PieceCutter {
 public:
  explicit PieceCutter(const Graph& graph);

  /// In order; together they are all nodes.
  [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }
  [[nodiscard]] bool is_communication(const Piece& piece) const;
  /// The operations of a piece as a separate graph: what earlier nodes have touched is external,
  /// what later ones touch is an output. Node i is node `first` + i of the whole. Buffers are as
  /// large as what the piece reaches of them, from its first element on.
  [[nodiscard]] Graph extract(const Piece& piece) const;

 private:
  struct Use {
    std::uint32_t first = 0xffffffffu, last = 0;  ///< nodes
  };
  void find_uses();
  void find_pieces();
  [[nodiscard]] BufferRole role(std::uint32_t buffer, const Piece& piece) const;

  const Graph& graph_;
  std::vector<Use> uses_;  ///< by buffer
  std::vector<Piece> pieces_;
};

}  // namespace trellis::device
