#include "analysis/accuracy/program_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "analysis/accuracy/replay.h"

namespace trellis::analysis {
namespace {

using sim::isa::Engine;

/// A segment's violations, limited to what a reader takes in.
void refuse_broken(const sim::isa::Program& program, const sim::isa::Limits& limits,
                   const std::string& file) {
  constexpr std::size_t kMost = 20;
  Problems problems;
  for (const auto& broken : validate(program, limits)) {
    if (problems.lines().size() == kMost) break;
    problems.add(fmt::format("{}: segment {}, {}, instruction {}", file, broken.segment,
                             name(broken.engine), broken.index),
                 broken.text);
  }
  problems.throw_if_any();
}

std::string track_name(std::size_t track) {
  if (track < sim::isa::kNumEngines) return std::string(name(static_cast<Engine>(track)));
  return fmt::format("DMA {}",
                     name(static_cast<sim::isa::DmaQueue>(track - sim::isa::kNumEngines)));
}

Picoseconds whole(const ProgramRun& run) {
  Picoseconds sum;
  for (const auto& segment : run.segments) sum += segment.duration;
  return sum;
}

std::array<Picoseconds, sim::kNumTracks> busy(const ProgramRun& run) {
  std::array<Picoseconds, sim::kNumTracks> sums{};
  for (const auto& segment : run.segments) {
    for (std::size_t t = 0; t < sums.size(); ++t) sums[t] += segment.busy[t];
  }
  return sums;
}

}  // namespace

ProgramRun run_program(const std::string& text, const std::string& file,
                       const std::string& instance, const std::vector<std::string>& overrides) {
  ProgramRun run;
  run.instance = instance;
  try {
    run.program = sim::isa::parse_program(text);
  } catch (const ConfigError& error) {
    throw ConfigError(file + ": " + error.what() +
                      "; expected a profile's JSON or the text that `trellis isa import` writes");
  }
  if (run.program.segments.empty())
    throw ConfigError(file +
                      ": has no segment; expected a profile's JSON or the text that `trellis "
                      "isa import` writes");
  run.name = run.program.name.empty() ? file : run.program.name;
  const sim::SystemConfig system = replay_machine(instance, overrides);
  for (const auto& p : system.parameters) run.constants += p.from_traces ? 1 : 0;
  refuse_broken(run.program, system.chip.core.limits, file);
  sim::Simulator simulator(system);
  try {
    run.segments = simulator.time_program(run.program, {.instructions = true}).segments;
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    throw Error(ExitCode::kHang, fmt::format("{}: {}", file, error.what()));
  }
  return run;
}

std::string program_text(const ProgramRun& run) {
  std::string out = fmt::format(
      "{} on one core of {}: {} instructions, {:.3f} µs; {} of the machine's numbers were read off "
      "instruction traces\n",
      run.name, run.instance, run.program.instruction_count(), to_microseconds(whole(run)),
      run.constants);
  const auto sums = busy(run);
  for (std::size_t t = 0; t < sums.size(); ++t) {
    if (sums[t].value > 0)
      out += fmt::format("  {:<16}{:>10.3f} µs busy\n", track_name(t), to_microseconds(sums[t]));
  }
  return out;
}

nlohmann::json program_json(const ProgramRun& run) {
  nlohmann::json tracks = nlohmann::json::object();
  const auto sums = busy(run);
  for (std::size_t t = 0; t < sums.size(); ++t) tracks[track_name(t)] = to_microseconds(sums[t]);
  return {{"schema", "trellis.replay/1"},
          {"program", run.name},
          {"instance", run.instance},
          {"simulated_span_us", to_microseconds(whole(run))},
          {"busy_us", tracks}};
}

traces::Timeline program_timeline(const ProgramRun& run) {
  traces::Timeline timeline;
  const auto process = timeline.add_process("simulated", 0);
  std::map<std::string, traces::TrackId> tracks;
  Picoseconds begin;
  for (std::size_t s = 0; s < run.segments.size(); ++s) {
    const auto add = [&](const sim::InstructionTiming& t, const std::string& track) {
      const auto& i = run.program.segments[s].queues[static_cast<std::size_t>(t.engine)][t.index];
      auto found = tracks.find(track);
      if (found == tracks.end())
        found = tracks.emplace(track, timeline.add_track(process, track, 0)).first;
      const std::vector<traces::Arg> args = {{"index", static_cast<std::int64_t>(t.index)}};
      timeline.slice(found->second, name(i.opcode), "simulated", begin + t.start, t.end - t.start,
                     args);
    };
    for (const auto& t : run.segments[s].instructions) {
      const auto& i = run.program.segments[s].queues[static_cast<std::size_t>(t.engine)][t.index];
      const bool weights = i.opcode == sim::isa::Opcode::kLoadStationary;
      add(t, weights ? "tensor weights" : std::string(name(t.engine)));
    }
    for (const auto& t : run.segments[s].transfers)
      add(t, fmt::format("DMA of {}", name(t.engine)));
    begin += run.segments[s].duration;
  }
  return timeline;
}

}  // namespace trellis::analysis
