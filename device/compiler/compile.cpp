#include "device/compiler/compile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "device/compiler/fusion/fusion.h"
#include "device/compiler/fusion/lower_chain.h"
#include "device/compiler/ops/lowering.h"
#include "device/compiler/rules/expand.h"
#include "device/compiler/rules/graph_editor.h"
#include "device/compiler/rules/graph_rules.h"
#include "sim/collectives/stage_steps.h"

namespace trellis::device {
namespace {

/// A fused kernel's name shows the first operations; all of them are in the graph.
std::string kernel_name(const std::vector<std::string>& names) {
  if (names.size() == 1) return names.front();
  constexpr std::size_t kShown = 4;
  std::vector<std::string> shown(
      names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kShown)));
  if (names.size() > kShown) shown.push_back(fmt::format("+{}", names.size() - kShown));
  return fmt::format("fused[{}]", fmt::join(shown, ","));
}

std::vector<std::string> sorted_unique(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

ExpandedGraph as_it_is(const Graph& graph) {
  ExpandedGraph same{graph, std::vector<std::uint32_t>(graph.nodes.size())};
  std::iota(same.origin.begin(), same.origin.end(), 0u);
  return same;
}

class Compiler {
 public:
  Compiler(const Graph& graph, const sim::CoreConfig& core, Estimates estimates)
      : expanded_(estimates == Estimates::kEverything ? as_it_is(graph)
                                                      : expand(apply_rules(graph, core.compiler))),
        lowering_(expanded_.graph, slots_of(graph), core),
        fuser_(expanded_.graph),
        core_(core),
        estimates_(estimates),
        unfused_optimizer_(!core.compiler.fused_optimizer &&
                           graph.phase() == TrainingPhase::kOptimizer) {
    find_readers();
  }

  CompiledGraph run() {
    const auto& nodes = expanded_.graph.nodes;
    for (std::uint32_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].kind == Node::Kind::kOp) {
        lower_op(nodes[i], i);
      } else {
        flush();
        pending_.push_back({nodes[i].kind == Node::Kind::kCommStart ? isa::CommAction::kStart
                                                                    : isa::CommAction::kWait,
                            nodes[i].comm});
      }
    }
    flush();
    CompiledGraph out;
    out.program = lowering_.builder().finish(pending_);
    for (auto& kernel : out.program.kernels) kernel.node = expanded_.origin[kernel.node];
    out.estimated = sorted_unique(lowering_.estimated());
    out.unknown = sorted_unique(unknown_);
    out.coverage = lowering_.coverage();
    out.host_copies = std::move(host_copies_);
    check(out.program);
    return out;
  }

 private:
  /// Those of the graph as it was given; what rules have added belongs to the program.
  [[nodiscard]] std::vector<std::int32_t> slots_of(const Graph& graph) const {
    std::vector<std::int32_t> slots = buffer_slots(graph);
    slots.resize(expanded_.graph.buffers.size(), -1);
    return slots;
  }

  void find_readers() {
    const Graph& graph = expanded_.graph;
    readers_.resize(graph.buffers.size());
    for (std::uint32_t n = 0; n < graph.nodes.size(); ++n) {
      for (std::uint32_t v : graph.nodes[n].inputs) readers_[graph.values[v].buffer].push_back(n);
    }
  }

  void lower_op(const Node& node, std::uint32_t index) {
    const std::string name = plain_name(node.op);
    if (is_bookkeeping(name)) return;
    if (is_host_transfer(node, name)) return note_host_copy(node, index);
    if (!pending_.empty()) {
      lowering_.builder().end_segment(pending_);
      pending_.clear();
    }
    if (estimates_ == Estimates::kEverything || has_complex_operand(node))
      return estimate(node, index, name);
    if (const ChainOp* op = find_chain_op(name)) {
      if (const auto chain = make_chain_node(expanded_.graph, node, index, *op)) fuser_.add(*chain);
      return;
    }
    flush();
    if (is_empty(node)) return;
    if (const LowerFunction lower = find_lowering(name)) {
      lower(lowering_, node, index);
      return;
    }
    const double passes = estimated_passes(name, kinds());
    if (passes > 0) return lower_estimate(lowering_, node, index, passes);
    if (estimates_ == Estimates::kKnown) throw UnsupportedOp(expanded_.graph, node);
    unknown_.push_back(name);
    lower_estimate(lowering_, node, index, kinds().unknown);
  }

  /// An operation that no lowering is asked for. Complex arithmetic is about four real operations
  /// each.
  void estimate(const Node& node, std::uint32_t index, const std::string& name) {
    flush();
    if (is_empty(node)) return;
    const double passes = estimated_passes(name, kinds());
    if (passes == 0) unknown_.push_back(name);
    lower_estimate(lowering_, node, index,
                   passes > 0            ? passes
                   : find_chain_op(name) ? kinds().complex
                                         : kinds().unknown);
  }

  const sim::OperationPasses& kinds() { return lowering_.builder().core().passes; }

  bool has_complex_operand(const Node& node) const {
    const auto complex = [&](std::uint32_t v) {
      return expanded_.graph.values[v].view.host == HostType::kComplex;
    };
    return std::any_of(node.inputs.begin(), node.inputs.end(), complex) ||
           std::any_of(node.outputs.begin(), node.outputs.end(), complex);
  }

  void note_host_copy(const Node& node, std::uint32_t index) {
    const bool to_device = !node.outputs.empty();
    const auto& sides = to_device ? node.outputs : node.inputs;
    if (sides.empty()) return;
    const TensorView& view = expanded_.graph.values[sides.front()].view;
    host_copies_.push_back(
        {view.elements() * isa::size_bytes(view.dtype), to_device, expanded_.origin[index]});
  }

  /// The other side of a copy is the host's: its DMA does it, no program of the core.
  static bool is_host_transfer(const Node& node, const std::string& name) {
    return (name.starts_with("_copy_from") || name == "copy") &&
           (node.inputs.empty() || node.outputs.empty());
  }

  bool is_empty(const Node& node) const {
    const auto empty = [&](std::uint32_t v) {
      return expanded_.graph.values[v].view.elements() == 0;
    };
    return !node.outputs.empty() && std::all_of(node.outputs.begin(), node.outputs.end(), empty);
  }

  void flush() {
    for (FusedGroup& group : fuser_.take()) {
      Chain chain = group.finish(readers_, core_.compiler.narrow_values);
      if (chain.outputs.empty()) continue;
      for (auto& v : chain.values) {
        if (v.input) v.buffer = lowering_.buffer(v.buffer);
      }
      for (auto& o : chain.outputs) o.buffer = lowering_.buffer(o.buffer);
      std::int64_t flops = 0;
      for (std::uint32_t n : group.nodes())
        flops += node_flops(expanded_.graph, expanded_.graph.nodes[n]);
      const auto kernel = lowering_.kernel(kernel_name(group.names()), group.nodes().front(), flops,
                                           false, static_cast<std::int64_t>(group.nodes().size()));
      if (unfused_optimizer_ && lower_chain_standalone(lowering_.builder(), kernel, chain))
        continue;
      lower_chain(lowering_.builder(), kernel, std::move(chain));
    }
  }

  void check(const isa::Program& program) const {
    const auto violations = isa::validate(program, core_.limits);
    if (violations.empty()) return;
    const auto& v = violations.front();
    TRELLIS_CHECK(
        false, fmt::format("the compiler made an illegal program for graph \"{}\" ({} violations); "
                           "first: segment {}, {} engine, instruction {}: {}",
                           expanded_.graph.name, violations.size(), v.segment, isa::name(v.engine),
                           v.index, v.text));
  }

  ExpandedGraph expanded_;
  Lowering lowering_;
  Fuser fuser_;
  sim::CoreConfig core_;
  Estimates estimates_;
  bool unfused_optimizer_;  ///< an optimizer's update, whose operations the graph compiler was not
                            ///< seen to fuse
  std::vector<std::vector<std::uint32_t>> readers_;  ///< buffer → nodes
  std::vector<isa::CommPoint> pending_;
  std::vector<HostCopy> host_copies_;
  std::vector<std::string> unknown_;
};

}  // namespace

CompiledGraph compile(const Graph& graph, const sim::CoreConfig& core, Estimates estimates) {
  return Compiler(graph, core, estimates).run();
}

bool has_lowering(const std::string& op) {
  constexpr std::string_view kForeach = "_foreach_";
  std::string name = plain_name(op);
  if (name.starts_with(kForeach)) name.erase(0, kForeach.size());
  return is_compound(name) || is_bookkeeping(name) || name.starts_with("_copy_from") ||
         find_chain_op(name) != nullptr || find_lowering(name) != nullptr;
}

}  // namespace trellis::device
