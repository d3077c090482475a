// Forgets records of a recorder so that its memory is bounded for any number of steps.
#include <set>

#include "device/driver/record/rank_recorder_impl.h"
#include "device/driver/timing/rank_clock.h"

namespace trellis::device {

void RankRecorder::Impl::forget_open_step() {
  std::vector<std::int64_t> runs(graphs.size());
  for (const GraphInstance& instance : step.instances) ++runs[instance.graph];
  for (std::size_t g = 0; g < graphs.size(); ++g) {
    graph_runs[g] -= runs[g];
    open_uses.add(graphs[g], runs[g]);
  }
  step.forgotten += static_cast<std::int64_t>(step.instances.size());
  step.instances.clear();
  forgotten_comms += static_cast<std::int64_t>(step.comms.size());
  step.comms.clear();
}

void RankRecorder::Impl::forget_graphs() {
  std::set<std::uint32_t> kept;
  for (const GraphInstance& instance : finished.instances) kept.insert(instance.graph);
  std::vector<std::uint32_t> place(graphs.size());
  std::vector<Graph> graphs_kept;
  std::vector<std::int64_t> runs_kept;
  graph_nodes = 0;
  for (std::uint32_t g = 0; g < graphs.size(); ++g) {
    if (!kept.contains(g)) {
      earlier_uses.add(graphs[g], graph_runs[g]);
      continue;
    }
    place[g] = static_cast<std::uint32_t>(graphs_kept.size());
    graph_nodes += static_cast<std::int64_t>(graphs[g].nodes.size());
    graphs_kept.push_back(std::move(graphs[g]));
    runs_kept.push_back(graph_runs[g]);
  }
  std::erase_if(graph_by_key, [&](const auto& entry) { return !kept.contains(entry.second); });
  for (auto& [key, graph] : graph_by_key) graph = place[graph];
  for (GraphInstance& instance : finished.instances) instance.graph = place[instance.graph];
  graphs = std::move(graphs_kept);
  graph_runs = std::move(runs_kept);
}

void RankRecorder::forget_what_is_too_much() {
  Impl& s = *impl_;
  if (interned_.is_full()) interned_.forget();
  if (s.layer_from.size() > Impl::kMostLayerBorders) {
    s.layer_from.erase(s.layer_from.begin(), s.layer_from.begin() + Impl::kMostLayerBorders / 2);
  }
  if (s.replays) return;  // its steps are ended, and its log names their graphs
  const bool fits = s.step.instances.size() < Impl::kMostRuns &&
                    s.step.comms.size() < Impl::kMostComms && s.graph_nodes < Impl::kMostOpenNodes;
  if (fits) return;
  s.forget_open_step();
  clock_->forget_graphs();
  s.forget_graphs();
}

OperatorUses RankRecorder::uses() const {
  OperatorUses all = impl_->earlier_uses;
  all.add(impl_->open_uses);
  for (std::size_t g = 0; g < impl_->graphs.size(); ++g) {
    all.add(impl_->graphs[g], impl_->graph_runs[g]);
  }
  return all;
}

}  // namespace trellis::device
