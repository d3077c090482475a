#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "device/compiler/fusion/chain.h"
#include "device/compiler/graph/graph.h"
#include "device/compiler/graph/recipe.h"

namespace trellis::device {

/// A value as a group of fused operations sees it: strides over the group's dimensions.
struct Access {
  std::uint32_t buffer = 0;
  std::int64_t offset = 0;
  std::vector<std::int64_t> strides;
  auto operator<=>(const Access&) const = default;
};

/// One chain operation with its iteration space, before it joins a group.
struct ChainNode {
  const Node* node = nullptr;
  std::uint32_t index = 0;  ///< in the graph
  const ChainOp* op = nullptr;
  std::vector<std::int64_t> sizes;
  std::vector<bool> reduced;
  bool terminal = false;
  std::vector<Access> inputs, outputs;
  std::vector<DType> input_dtypes, output_dtypes;
};

/// Resolves shapes and strides; nullopt when the operation produces nothing (a size is 0).
[[nodiscard]] std::optional<ChainNode> make_chain_node(const Graph& graph, const Node& node,
                                                       std::uint32_t index, const ChainOp& op);

/// Operations that become one kernel.
class FusedGroup : public StepSink {
 public:
  explicit FusedGroup(const Graph& graph) : graph_(&graph) {}

  /// Adds the operation when its space and its operands fit; changes nothing otherwise.
  bool try_join(const ChainNode& node);
  [[nodiscard]] bool shares_input(const ChainNode& node) const;
  /// The chain with those results stored that are alive outside; no outputs: nothing to do.
  /// `narrow`: values inside an operation on bf16 tensors are bf16.
  [[nodiscard]] Chain finish(const std::vector<std::vector<std::uint32_t>>& readers, bool narrow);
  [[nodiscard]] const std::vector<std::uint32_t>& nodes() const { return nodes_; }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

  Term alu(sim::isa::AluOp op, Term a, Term b) override;
  Term activation(sim::isa::Activation fn, Term a, double scale, double bias) override;
  Term select(Term then, Term predicate, double otherwise) override;
  Term reduce(sim::isa::AluOp op, Term a) override;
  Term random() override;

 private:
  struct Fit {
    std::vector<std::int64_t> sizes;  ///< refined
    std::vector<bool> reduced;
    std::vector<Access> inputs, outputs;  ///< the node's, over `sizes`
    bool rows_only = false;               ///< the node works on one element per row of the group
  };
  [[nodiscard]] std::optional<Fit> fit(const ChainNode& node) const;
  [[nodiscard]] bool operands_fit(const Fit& fit) const;
  void refine(const Fit& fit);
  void apply(const ChainNode& node, const Fit& fit);
  int input(const Access& access, DType dtype);
  int new_value(DType dtype);
  int step(Chain::Step step);
  void finish_output(const ChainNode& node, std::size_t i, const Access& access, Term term);
  [[nodiscard]] bool is_reduction(int value) const;
  void merge_scalar_pairs(Chain& chain) const;
  void mark_narrow(const ChainNode& node, const Fit& fit, const std::vector<Term>& terms,
                   std::size_t first_step);
  void prune(Chain& chain) const;

  const Graph* graph_;
  Chain chain_;
  std::map<Access, int> current_;  ///< what HBM would hold: written or read
  std::map<Access, int> written_;
  std::map<Access, std::uint32_t> written_at_;  ///< last node that wrote it
  std::vector<std::uint32_t> nodes_;
  std::vector<std::string> names_;
  bool closed_ = false;  ///< ends with sums that are no column next to the rows
  bool columns_ =
      false;  ///< these are sums over leading dimensions: others of the same space may join them
  int first_new_value_ = 0;
  std::vector<bool> row_;  ///< value: one element per row
};

/// Cuts a run of chain operations into groups. The groups executed in order give what the
/// operations in order give.
class Fuser {
 public:
  explicit Fuser(const Graph& graph) : graph_(graph) {}
  void add(const ChainNode& node);
  std::vector<FusedGroup> take();

 private:
  void open_group(const ChainNode& node);
  bool move_to_end(int group);
  [[nodiscard]] bool joins_moved(const ChainNode& node, int after);
  int& last(std::map<std::uint32_t, int>& map, std::uint32_t buffer) {
    return map.try_emplace(buffer, -1).first->second;
  }
  const Graph& graph_;
  std::vector<FusedGroup> groups_;
  std::map<std::uint32_t, int> last_writer_, last_reader_;
  std::vector<std::set<std::uint32_t>> reads_, writes_;  ///< buffers, by group
};

}  // namespace trellis::device
