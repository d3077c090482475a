#include "device/driver/timing/program_timer.h"

#include <algorithm>
#include <thread>

#include "device/compiler/graph/pieces.h"
#include "device/compiler/rules/graph_rules.h"

namespace trellis::device {

ProgramTimer::ProgramTimer(const sim::SystemConfig& system, int threads,
                           std::optional<std::filesystem::path> cache, std::size_t most_programs)
    : system_(system),
      most_programs_(most_programs),
      pieces_(system.chip.core,
              [this](const sim::isa::Program& program) { return machine().time_program(program); },
              TimingCache(std::move(cache), system),
              threads > 0 ? threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency())),
              {system.program_stretch(), system.optimizer_stretch()}) {}

sim::Simulator& ProgramTimer::machine() {
  if (!simulator_) simulator_ = std::make_unique<sim::Simulator>(system_);
  return *simulator_;
}

std::shared_ptr<const TimedProgram> ProgramTimer::share(const Graph& graph, Unknown unknown) {
  const std::lock_guard lock(mutex_);
  const ContentHash hash = graph.hash();
  if (const auto known = programs_.find({hash, unknown}); known != programs_.end())
    return known->second;
  if (programs_.size() >= most_programs_) {
    programs_.clear();
    pieces_.forget_unused();
  }
  return programs_[{hash, unknown}] = build(graph, hash, unknown);
}

/// Where nothing is computed at the same time, collectives inside a layer are waited for where they
/// start.
void ProgramTimer::add_communication(const Graph& graph, std::uint32_t index,
                                     TimedProgram& program) const {
  const Node& node = graph.nodes[index];
  const std::string& axis = graph.comms[node.comm].axis;
  const bool at_once = !system_.chip.core.compiler.overlapped_tp && (axis == "tp" || axis == "kv");
  const bool starts = node.kind == Node::Kind::kCommStart;
  if (starts) program.steps.push_back({nullptr, index, {sim::isa::CommAction::kStart, node.comm}});
  if (starts == at_once)
    program.steps.push_back({nullptr, index, {sim::isa::CommAction::kWait, node.comm}});
}

std::shared_ptr<const TimedProgram> ProgramTimer::build(const Graph& recorded,
                                                        const ContentHash& hash, Unknown unknown) {
  const Graph graph = apply_rules(recorded, system_.chip.core.compiler);
  auto program = std::make_shared<TimedProgram>();
  program->name = graph.name;
  program->hash = hash;
  const PieceCutter cutter(graph);
  std::vector<Graph> graphs;
  for (const Piece& piece : cutter.pieces()) {
    if (!cutter.is_communication(piece)) graphs.push_back(cutter.extract(piece));
  }
  program->pieces = pieces_.time(graphs, unknown);
  std::size_t next = 0;
  for (const Piece& piece : cutter.pieces()) {
    const Node& node = graph.nodes[piece.first];
    if (node.kind != Node::Kind::kOp) {
      add_communication(graph, piece.first, *program);
      continue;
    }
    const TimedPiece& t = *program->pieces[next++];
    if (t.instructions > 0) program->steps.push_back({&t, piece.first, {}});
    for (const HostCopy& copy : t.host_copies)
      program->host_copies.push_back({copy.bytes, copy.to_device, piece.first + copy.node});
    program->estimated.insert(program->estimated.end(), t.estimated.begin(), t.estimated.end());
    program->coverage += t.coverage;
  }
  std::sort(program->estimated.begin(), program->estimated.end());
  program->estimated.erase(std::unique(program->estimated.begin(), program->estimated.end()),
                           program->estimated.end());
  return program;
}

Picoseconds ProgramTimer::communication(const CommRequest& request) {
  const std::lock_guard lock(mutex_);
  const int element = sim::isa::size_bytes(request.dtype);
  const auto members = static_cast<std::int64_t>(request.ranks.size());
  // An uneven exchange counts as an even one of the next whole block.
  const std::int64_t unit = request.kind == sim::CollectiveKind::kAllToAll ? members : 1;
  const std::int64_t elements = (request.elements + unit - 1) / unit * unit;
  const CommKey key{request.kind, request.ranks, elements, element};
  const auto known = communications_.find(key);
  if (known != communications_.end()) return known->second;
  if (communications_.size() >= kMostCommunications) communications_.clear();
  const Picoseconds time = sim::time_collective(system_, {request.kind, request.ranks,
                                                          Bytes(elements * element), element})
                               .time;
  return communications_.emplace(key, time).first->second;
}

sim::RankFold ProgramTimer::equal_ranks(const sim::ClusterJob& job) {
  const std::lock_guard lock(mutex_);
  return machine().equal_ranks(job);
}

sim::ClusterTiming ProgramTimer::run_cluster(const sim::ClusterJob& job) {
  const std::lock_guard lock(mutex_);
  return machine().run_cluster(job);
}

Picoseconds ProgramTimer::makespan_without_slow_parts(const sim::ClusterJob& job) {
  const std::lock_guard lock(mutex_);
  return machine().makespan_without_slow_parts(job);
}

}  // namespace trellis::device
