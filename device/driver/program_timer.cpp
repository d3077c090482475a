#include "device/driver/program_timer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/log.h"

namespace trellis::device {

sim::Simulator& ProgramTimer::machine() {
  if (!simulator_) simulator_ = std::make_unique<sim::Simulator>(system_);
  return *simulator_;
}

const TimedProgram& ProgramTimer::keep(Programs& programs, const ContentHash& key, CompiledGraph compiled) {
  auto timed = std::make_unique<TimedProgram>();
  timed->compiled = std::move(compiled);
  timed->timing = std::make_shared<const sim::CoreTiming>(machine().time_program(timed->compiled.program));
  return *programs.emplace(key, std::move(timed)).first->second;
}

const TimedProgram& ProgramTimer::time(const Graph& graph) {
  const std::lock_guard lock(mutex_);
  const ContentHash key = graph.hash();
  const auto known = exact_.find(key);
  return known != exact_.end() ? *known->second : keep(exact_, key, compile(graph, system_.chip.core));
}

const TimedProgram& ProgramTimer::time_or_estimate(const Graph& graph) {
  const std::lock_guard lock(mutex_);
  const ContentHash key = graph.hash();
  for (Programs* programs : {&exact_, &estimated_}) {
    if (const auto known = programs->find(key); known != programs->end()) return *known->second;
  }
  try {
    return keep(exact_, key, compile(graph, system_.chip.core));
  } catch (const std::exception&) {  // an UnsupportedOp, or operands that a lowering did not expect
    return keep(estimated_, key, compile_anyhow(graph));
  }
}

CompiledGraph ProgramTimer::compile_anyhow(const Graph& graph) {
  std::string reason = "their program never ends";
  try {
    CompiledGraph compiled = compile(graph, system_.chip.core, Estimates::kUnknownToo);
    if (!compiled.unknown.empty()) {
      warn_of(compiled, "the compiler has neither a lowering nor an estimate for them");
      return compiled;
    }
  } catch (const std::exception& error) {
    reason = error.what();
  }
  CompiledGraph compiled = compile(graph, system_.chip.core, Estimates::kEverything);
  warn_of(compiled, fmt::format("the compiler cannot take their graph ({})", reason));
  return compiled;
}

void ProgramTimer::warn_of(const CompiledGraph& compiled, const std::string& reason) {
  std::vector<std::string> fresh;
  for (const std::string& name : compiled.unknown) {
    if (warned_.insert(name).second) fresh.push_back(name);
  }
  if (fresh.empty()) return;
  log_warning(fmt::format("simulated time counts {} as passes over the operands: {}", fmt::join(fresh, ", "), reason));
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
  const Picoseconds time = sim::time_collective(system_, {request.kind, request.ranks, Bytes(elements * element), element}).time;
  return communications_.emplace(key, time).first->second;
}

sim::ClusterTiming ProgramTimer::run_cluster(const sim::ClusterJob& job) {
  const std::lock_guard lock(mutex_);
  return machine().run_cluster(job);
}

}  // namespace trellis::device
