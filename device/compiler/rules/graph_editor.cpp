#include "device/compiler/rules/graph_editor.h"

#include <algorithm>
#include <map>
#include <set>

#include "device/compiler/graph/recipe.h"
#include "device/compiler/rules/graph_rules.h"

namespace trellis::device {

bool is_bookkeeping(const std::string& name) {
  static const std::set<std::string, std::less<>> kNames{
      "view",   "reshape",  "_unsafe_view", "_reshape_alias",
      "expand", "permute",  "transpose",    "t",
      "slice",  "select",   "unsqueeze",    "squeeze",
      "split",  "chunk",    "as_strided",   "detach",
      "alias",  "empty",    "empty_like",   "empty_strided",
      "resize", "narrow",   "set",          "unbind",
      "unfold", kAbsorbedOp};
  return kNames.contains(name);
}

GraphEditor::GraphEditor(Graph graph) : graph_(std::move(graph)), uses_(graph_.buffers.size()) {
  for (std::uint32_t n = 0; n < graph_.nodes.size(); ++n) {
    names_.push_back(graph_.nodes[n].kind == Node::Kind::kOp ? plain_name(graph_.nodes[n].op)
                                                             : std::string());
    note_uses(n);
  }
}

void GraphEditor::note_uses(std::uint32_t index) {
  if (is_bookkeeping(names_[index])) return;
  const auto note = [&](std::uint32_t value, bool write) {
    std::vector<Use>& list = uses_[buffer(value)];
    auto at = std::lower_bound(list.begin(), list.end(), index,
                               [](const Use& use, std::uint32_t node) { return use.node < node; });
    if (at == list.end() || at->node != index) at = list.insert(at, Use{index});
    (write ? at->writes : at->reads) = true;
  };
  for (const std::uint32_t v : graph_.nodes[index].inputs) note(v, false);
  for (const std::uint32_t v : graph_.nodes[index].outputs) note(v, true);
}

void GraphEditor::forget_uses(std::uint32_t index) {
  for (const auto* list : {&graph_.nodes[index].inputs, &graph_.nodes[index].outputs}) {
    for (const std::uint32_t v : *list)
      std::erase_if(uses_[buffer(v)], [&](const Use& use) { return use.node == index; });
  }
}

std::optional<std::uint32_t> GraphEditor::writer(std::uint32_t buffer, std::uint32_t before) const {
  std::optional<std::uint32_t> found;
  for (const Use& use : uses_[buffer]) {
    if (use.node >= before) break;
    if (use.writes) found = use.node;
  }
  return found;
}

bool GraphEditor::written_between(std::uint32_t buffer, std::uint32_t after,
                                  std::uint32_t before) const {
  return std::any_of(uses_[buffer].begin(), uses_[buffer].end(), [&](const Use& use) {
    return use.writes && use.node > after && use.node < before;
  });
}

bool GraphEditor::is_whole(std::uint32_t value) const {
  const TensorView& v = view(value);
  std::int64_t expected = 1;
  for (std::size_t d = v.sizes.size(); d-- > 0; expected *= v.sizes[d]) {
    if (v.sizes[d] != 1 && v.strides[d] != expected) return false;
  }
  return v.offset == 0 &&
         expected * sim::isa::size_bytes(v.dtype) == graph_.buffers[buffer(value)].bytes;
}

std::optional<std::size_t> GraphEditor::copy_source(std::uint32_t index) const {
  static const std::set<std::string, std::less<>> kCopies{"_to_copy", "copy",       "_copy_from",
                                                          "clone",    "contiguous", "to"};
  const Node& node = graph_.nodes[index];
  if (!kCopies.contains(names_[index]) || node.outputs.size() != 1) return std::nullopt;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (buffer(node.inputs[i]) != buffer(node.outputs[0])) return i;
  }
  return std::nullopt;
}

std::uint32_t GraphEditor::add_buffer(std::int64_t bytes) {
  graph_.buffers.push_back({BufferRole::kTemporary, bytes});
  uses_.emplace_back();
  return static_cast<std::uint32_t>(graph_.buffers.size() - 1);
}

std::uint32_t GraphEditor::add_value(std::uint32_t buffer, TensorView view) {
  graph_.values.push_back({buffer, std::move(view)});
  return static_cast<std::uint32_t>(graph_.values.size() - 1);
}

void GraphEditor::replace(std::uint32_t index, std::string op, std::string scalars,
                          std::vector<std::uint32_t> inputs, std::vector<std::uint32_t> outputs) {
  forget_uses(index);
  Node& node = graph_.nodes[index];
  node.op = std::move(op);
  node.scalars = std::move(scalars);
  node.inputs = std::move(inputs);
  node.outputs = std::move(outputs);
  names_[index] = plain_name(node.op);
  note_uses(index);
}

void GraphEditor::absorb(std::uint32_t index) {
  graph_.nodes[index].kind = Node::Kind::kOp;
  graph_.nodes[index].comm = kNoComm;
  replace(index, kAbsorbedOp, "", {}, {});
}

void GraphEditor::absorb_dead(bool collectives) {
  std::vector<bool> read(graph_.buffers.size(), false);
  std::map<std::uint32_t, std::uint32_t> waits;  // by communication
  // A rank that sends does it for another one; what is waited for elsewhere is needed there.
  const auto may_go = [&](const Node& node) {
    return node.kind == Node::Kind::kOp ||
           (collectives && graph_.comms[node.comm].kind != sim::CollectiveKind::kSendRecv &&
            waits.contains(node.comm));
  };
  for (std::uint32_t n = static_cast<std::uint32_t>(graph_.nodes.size()); n-- > 0;) {
    const Node& node = graph_.nodes[n];
    if (node.kind == Node::Kind::kCommWait) waits[node.comm] = n;
    if (is_bookkeeping(names_[n])) continue;
    const auto wanted = [&](std::uint32_t v) {
      return !is_temporary(buffer(v)) || read[buffer(v)];
    };
    if (may_go(node) && !node.outputs.empty() &&
        std::none_of(node.outputs.begin(), node.outputs.end(), wanted)) {
      if (node.kind == Node::Kind::kCommStart) absorb(waits.at(node.comm));
      absorb(n);
      continue;
    }
    for (const std::uint32_t v : node.inputs) read[buffer(v)] = true;
  }
}

Graph apply_rules(const Graph& graph, const sim::CompilerRules& rules) {
  GraphEditor editor(graph);
  bool changed = fuse_random(editor);
  if (rules.fused_attention) changed = fuse_attention(editor) || changed;
  if (rules.rounding_casts) changed = fuse_rounding(editor) || changed;
  if (rules.batched_products) changed = fuse_layouts(editor) || changed;
  if (rules.fused_results) changed = fuse_results(editor) || changed;
  // A recomputation makes what no one reads; elsewhere an operation without a reader may be what
  // someone measures.
  const bool recomputes = rules.dead_code_elimination && graph.phase() == TrainingPhase::kBackward;
  if (changed || recomputes) editor.absorb_dead(recomputes);
  return editor.take();
}

}  // namespace trellis::device
