#include "device/driver/reports/rank_divergence.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/content_hash.h"

namespace trellis::device {
namespace {

/// Everything of an operation that is the same on ranks of one program.
ContentHash form_of(const Graph& graph, const Node& node) {
  ContentHasher hasher;
  hasher.value(node.kind);
  hasher.text(node.op);
  for (const auto* values : {&node.inputs, &node.outputs}) {
    hasher.value(values->size());
    for (const std::uint32_t value : *values) {
      const TensorView& view = graph.values[value].view;
      hasher.value(view.dtype);
      hasher.value(view.sizes.size());
    }
  }
  if (node.comm != kNoComm) hasher.value(graph.comms[node.comm].kind);
  return hasher.finish();
}

/// A distinct graph's operations, and a hash of them all.
struct Forms {
  struct Operation {
    std::size_t node = 0;
    ContentHash form;
  };
  std::vector<Operation> operations;
  ContentHash whole;
};

/// True for operations that each rank of one program does in its own way: one reads a number for
/// all, and in a ring some send before they receive.
bool is_own_transfer(const Graph& graph, const Node& node) {
  const bool sends =
      node.comm != kNoComm && graph.comms[node.comm].kind == sim::CollectiveKind::kSendRecv;
  return sends || node.op.starts_with("_copy_from");
}

std::vector<Forms> forms_of(const std::vector<Graph>& graphs) {
  std::vector<Forms> all;
  for (const Graph& graph : graphs) {
    Forms forms;
    ContentHasher hasher;
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      if (is_own_transfer(graph, graph.nodes[i])) continue;
      const ContentHash form = form_of(graph, graph.nodes[i]);
      hasher.value(form.high);
      hasher.value(form.low);
      forms.operations.push_back({i, form});
    }
    forms.whole = hasher.finish();
    all.push_back(std::move(forms));
  }
  return all;
}

/// Goes through the operations of a rank's step, whatever graphs they are cut into.
class Walk {
 public:
  Walk(const RecordedRank& rank, const std::vector<Forms>& forms) : rank_(rank), forms_(forms) {
    skip_empty();
  }
  [[nodiscard]] bool at_end() const { return instance_ == rank_.stream->instances.size(); }
  [[nodiscard]] bool begins_graph() const { return next_ == 0; }
  [[nodiscard]] const Forms& forms() const { return forms_[graph_index()]; }
  [[nodiscard]] const ContentHash& form() const { return forms().operations[next_].form; }
  void pass_operation() {
    if (++next_ == forms().operations.size()) pass_graph();
  }
  void pass_graph() {
    next_ = 0;
    ++instance_;
    skip_empty();
  }
  /// "operation 42 of forward in model.layers.7".
  [[nodiscard]] std::string place() const {
    const std::string& layer = node().scope.layer;
    return fmt::format("operation {} of \"{}\"{}", forms().operations[next_].node + 1, graph().name,
                       layer.empty() ? "" : " in " + layer);
  }
  /// "add.Tensor(fp32[4, 8], fp32[8])"; "no further operation".
  [[nodiscard]] std::string text() const {
    if (at_end()) return "no further operation";
    std::vector<std::string> types;
    for (const std::uint32_t value : node().inputs) {
      const TensorView& view = graph().values[value].view;
      types.push_back(fmt::format("{}[{}]", name(view.dtype), fmt::join(view.sizes, ", ")));
    }
    return fmt::format("{}({})", node().op, fmt::join(types, ", "));
  }

 private:
  [[nodiscard]] std::size_t graph_index() const { return rank_.stream->instances[instance_].graph; }
  [[nodiscard]] const Graph& graph() const { return (*rank_.graphs)[graph_index()]; }
  [[nodiscard]] const Node& node() const { return graph().nodes[forms().operations[next_].node]; }
  void skip_empty() {
    while (!at_end() && forms().operations.empty()) ++instance_;
  }
  const RecordedRank& rank_;
  const std::vector<Forms>& forms_;
  std::size_t instance_ = 0, next_ = 0;
};

/// Walks to the first difference; both at their ends: there is none.
void walk_together(Walk& one, Walk& other) {
  while (!one.at_end() && !other.at_end()) {
    if (one.begins_graph() && other.begins_graph() && one.forms().whole == other.forms().whole) {
      one.pass_graph();
      other.pass_graph();
    } else if (one.form() == other.form()) {
      one.pass_operation();
      other.pass_operation();
    } else {
      return;
    }
  }
}

bool sends(const RecordedRank& rank) {
  return std::ranges::any_of(rank.stream->comms, [](const CommRequest& comm) {
    return comm.kind == sim::CollectiveKind::kSendRecv;
  });
}

/// A pipeline stage has a program of its own, and under causal ring attention so has each part of
/// the sequence: it skips the blocks that it does not see.
std::vector<int> program_of(int rank, const std::vector<RankAxis>& axes) {
  std::vector<int> place;
  for (const RankAxis& axis : axes)
    if (axis.name == "PP" || axis.name == "CP") place.push_back(rank / axis.stride % axis.size);
  return place;
}

std::string named(int rank, const std::vector<RankAxis>& axes) {
  const std::string place = place_text(axes, rank);
  return fmt::format("rank {}{}", rank, place.empty() ? "" : " (" + place + ")");
}

}  // namespace

std::string rank_divergence(const std::vector<RecordedRank>& ranks,
                            const std::vector<RankAxis>& axes) {
  if (axes.empty() && std::ranges::any_of(ranks, sends)) return "";
  struct First {
    const RecordedRank* rank;
    std::vector<Forms> forms;
  };
  std::map<std::vector<int>, First> programs;
  std::string difference;
  int differing = 0;
  for (const RecordedRank& rank : ranks) {
    if (rank.stream->instances.empty() || rank.stream->forgotten > 0) continue;
    std::vector<Forms> forms = forms_of(*rank.graphs);
    const auto [found, is_first] = programs.try_emplace(program_of(rank.rank, axes));
    First& first = found->second;
    if (is_first) {
      first = {&rank, std::move(forms)};
      continue;
    }
    Walk one(*first.rank, first.forms), other(rank, forms);
    walk_together(one, other);
    if (one.at_end() && other.at_end()) continue;
    if (++differing > 1) continue;
    difference = fmt::format("{} runs {} where {} runs {}, {}", named(rank.rank, axes),
                             other.text(), named(first.rank->rank, axes), one.text(),
                             one.at_end() ? other.place() : one.place());
  }
  if (differing == 0) return "";
  return fmt::format(
      "ranks of one program differ{}: {}: a device compiles one program for them, and training "
      "software refuses a second or waits for it: take the branch on all ranks, and mask its "
      "values",
      differing == 1 ? "" : fmt::format(" ({} of {}; the first:)", differing, ranks.size()),
      difference);
}

}  // namespace trellis::device
