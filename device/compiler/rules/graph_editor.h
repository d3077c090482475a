#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/compiler/graph/graph.h"

namespace trellis::device {

/// An operation that makes no instructions: views, allocations, what rules have absorbed.
[[nodiscard]] bool is_bookkeeping(const std::string& plain_name);

/// A graph under the hands of a rule: who touches which buffer, and changes that keep node numbers.
class GraphEditor {
 public:
  explicit GraphEditor(Graph graph);

  struct Use {
    std::uint32_t node = 0;
    bool reads = false, writes = false;
  };

  [[nodiscard]] const Graph& graph() const { return graph_; }
  [[nodiscard]] const Node& node(std::uint32_t index) const { return graph_.nodes[index]; }
  [[nodiscard]] const std::string& name(std::uint32_t index) const {
    return names_[index];
  }  ///< plain
  [[nodiscard]] const TensorView& view(std::uint32_t value) const {
    return graph_.values[value].view;
  }
  [[nodiscard]] std::uint32_t buffer(std::uint32_t value) const {
    return graph_.values[value].buffer;
  }
  /// The uses of a buffer in order of nodes, each node once.
  [[nodiscard]] const std::vector<Use>& uses(std::uint32_t buffer) const { return uses_[buffer]; }
  /// The last node before `before` that writes the buffer.
  [[nodiscard]] std::optional<std::uint32_t> writer(std::uint32_t buffer,
                                                    std::uint32_t before) const;
  [[nodiscard]] bool written_between(std::uint32_t buffer, std::uint32_t after,
                                     std::uint32_t before) const;
  [[nodiscard]] bool is_temporary(std::uint32_t buffer) const {
    return graph_.buffers[buffer].role == BufferRole::kTemporary;
  }
  /// The value is all of its buffer, in order.
  [[nodiscard]] bool is_whole(std::uint32_t value) const;

  /// The input that a copy, cast or clone reads: the one that is not its result. nullopt: the node
  /// is no copy, cast or clone.
  [[nodiscard]] std::optional<std::size_t> copy_source(std::uint32_t index) const;

  std::uint32_t add_buffer(std::int64_t bytes);
  std::uint32_t add_value(std::uint32_t buffer, TensorView view);
  void replace(std::uint32_t index, std::string op, std::string scalars,
               std::vector<std::uint32_t> inputs, std::vector<std::uint32_t> outputs);
  void absorb(std::uint32_t index);
  /// Absorbs what only made temporaries that no one reads any more; with `collectives` also those.
  void absorb_dead(bool collectives);
  Graph take() { return std::move(graph_); }

 private:
  void note_uses(std::uint32_t index);
  void forget_uses(std::uint32_t index);

  Graph graph_;
  std::vector<std::string> names_;
  std::vector<std::vector<Use>> uses_;
};

/// The rules, each a file. True: something was changed.
bool fuse_attention(GraphEditor& editor);
bool fuse_rounding(GraphEditor& editor);
bool fuse_random(GraphEditor& editor);
bool fuse_results(GraphEditor& editor);
bool fuse_layouts(GraphEditor& editor);

}  // namespace trellis::device
