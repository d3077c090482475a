#include "analysis/accuracy/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "analysis/accuracy/replay_constants.h"
#include "sim/config/load_system.h"

namespace trellis::analysis {
namespace {

using sim::isa::Engine;

constexpr double kMicrosecond = 1e6;        // in picoseconds
constexpr std::int64_t kNanosecond = 1000;  // in picoseconds

double microseconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-3; }

/// The generation of an instance's name: "trn2".
std::string generation_in(const std::string& instance) {
  return instance.substr(0, instance.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789"));
}

class Run {
 public:
  Run(const sim::Profile& profile, const ReplayOptions& options)
      : profile_(profile), options_(options), machine_(machine_of(profile, options.instance)) {}

  Replay run() {
    const sim::SystemConfig system = replay_machine(machine_, options_.overrides);
    imported_ = sim::import_program(profile_, system.chip.core.limits);
    Replay result = compare(system);
    result.notes.insert(result.notes.begin(), imported_.notes.begin(), imported_.notes.end());
    if (options_.explain) {
      result.left = explaining_constant(system, result.mean_error(), [&](const auto& changed) {
        std::vector<std::string> overrides = options_.overrides;
        overrides.insert(overrides.end(), changed.begin(), changed.end());
        return compare(replay_machine(machine_, overrides)).mean_error();
      });
    }
    return result;
  }

 private:
  [[nodiscard]] sim::TimeOptions time_options() const {
    sim::TimeOptions options{.instructions = true};
    if (!profile_.clock.empty())
      options.clock_grid =
          Picoseconds((profile_.clock.front().start - program_begin()) * kNanosecond);
    if (options_.transfers == Transfers::kModelled) return options;
    for (const sim::TracedTransfer& t : imported_.transfers) {
      if (t.last >= t.trigger && t.last > 0)
        options.given.push_back(
            {t.engine, t.index, Picoseconds((t.last - t.trigger) * kNanosecond)});
    }
    return options;
  }

  /// When the first instruction of the program begins on any engine.
  [[nodiscard]] std::int64_t program_begin() const {
    std::int64_t begin = profile_.end;
    for (const auto& i : profile_.instructions)
      begin = i.of_program ? std::min(begin, i.start) : begin;
    return begin;
  }

  sim::SegmentTiming time(const sim::SystemConfig& system) const {
    sim::Simulator simulator(system);
    try {
      return std::move(simulator.time_program(imported_.program, time_options()).segments.front());
    } catch (const Error& error) {
      throw Error(
          ExitCode::kHang, name_instructions(error.what(), [&](Engine engine, std::size_t index) {
            return place_text(profile_, imported_.places[static_cast<std::size_t>(engine)][index]);
          }));
    }
  }

  [[nodiscard]] Replay compare(const sim::SystemConfig& system) const {
    const sim::SegmentTiming timing = time(system);
    Replay r;
    r.file = profile_.name;
    r.instance = machine_;
    r.versions = profile_.versions;
    r.transfers = options_.transfers;
    r.clock = profile_.clock;
    r.begin = profile_.begin;
    const bool traced = options_.transfers == Transfers::kTraced;
    const double start = traced ? microseconds(program_begin() - profile_.begin)
                                : to_microseconds(system.launch.profiled_start);
    r.real_span = microseconds(profile_.end - profile_.begin);
    r.model_span =
        start + to_microseconds(timing.duration) + to_microseconds(system.launch.profiled_end);
    for (const sim::InstructionTiming& t : timing.instructions) {
      const auto& i =
          profile_.instructions[imported_.places[static_cast<std::size_t>(t.engine)][t.index]];
      r.instructions.push_back({i.opcode, std::string(name(t.engine)), i.pc,
                                microseconds(i.start - profile_.begin),
                                microseconds(i.end() - profile_.begin),
                                start + static_cast<double>(t.start.value) / kMicrosecond,
                                start + static_cast<double>(t.end.value) / kMicrosecond});
    }
    add_queues(r, timing, start);
    for (const sim::Parameter& p : system.parameters) {
      if (p.from_traces) r.constants.push_back(p);
    }
    return r;
  }

  void add_queues(Replay& r, const sim::SegmentTiming& timing, double start) const {
    std::map<std::pair<Engine, std::uint32_t>, const sim::InstructionTiming*> modelled;
    for (const auto& t : timing.transfers) modelled[{t.engine, t.index}] = &t;
    for (const sim::TracedTransfer& t : imported_.transfers) {
      const auto found = modelled.find({t.engine, t.index});
      if (t.last == 0 || found == modelled.end()) continue;
      const auto& i =
          profile_.instructions[imported_.places[static_cast<std::size_t>(t.engine)][t.index]];
      r.queues.push_back({i.opcode, t.queue, i.pc, microseconds(t.first - profile_.begin),
                          microseconds(t.last - profile_.begin),
                          start + static_cast<double>(found->second->start.value) / kMicrosecond,
                          start + static_cast<double>(found->second->end.value) / kMicrosecond});
    }
  }

  const sim::Profile& profile_;
  const ReplayOptions& options_;
  const std::string machine_;
  sim::ImportedProgram imported_;
};

}  // namespace

double Replay::mean_error() const {
  double sum = 0;
  for (const auto& i : instructions) sum += std::abs(i.error());
  return instructions.empty() ? 0 : sum / static_cast<double>(instructions.size());
}

Summary Replay::starts() const {
  std::vector<double> errors;
  for (const auto& i : instructions) errors.push_back(i.error());
  return summarize(std::move(errors));
}

std::string machine_of(const sim::Profile& profile, const std::string& asked) {
  const std::vector<std::string> known = sim::instance_names();
  if (std::find(known.begin(), known.end(), profile.instance_type) == known.end()) {
    std::string list;
    for (const auto& each : known) list += (list.empty() ? "" : ", ") + each;
    throw ConfigError(fmt::format("{}: summary[0].instance_type: expected one of {}, got \"{}\"",
                                  profile.name, list, profile.instance_type));
  }
  if (asked.empty()) return profile.instance_type;
  if (generation_in(asked) != generation_in(profile.instance_type)) {
    throw ConfigError(fmt::format(
        "{}: summary[0].instance_type: the profile is of {}, --instance asks for {}: instructions "
        "of one generation do not run on another one",
        profile.name, profile.instance_type, asked));
  }
  return asked;
}

sim::SystemConfig replay_machine(const std::string& instance,
                                 const std::vector<std::string>& overrides) {
  return sim::load_system(
      instance, {.logical_core_size = 1, .overrides = overrides, .instruction_traces = true});
}

std::string name_instructions(const std::string& text,
                              const std::function<std::string(Engine, std::size_t)>& name) {
  static const std::string kAt = " waits at instruction ";
  std::string out;
  std::size_t from = 0;
  for (std::size_t at = text.find(kAt); at != std::string::npos; at = text.find(kAt, from)) {
    const std::size_t line = text.find_last_of(" \n", at - 1) + 1;
    const auto engine = sim::isa::parse_name<Engine>(text.substr(line, at - line));
    std::size_t end = at + kAt.size();
    std::size_t index = 0;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9')
      index = index * 10 + static_cast<std::size_t>(text[end++] - '0');
    out += text.substr(from, end - from);
    if (engine) out += " (" + name(*engine, index) + ")";
    from = end;
  }
  return out + text.substr(from);
}

Replay replay(const sim::Profile& profile, const ReplayOptions& options) {
  return Run(profile, options).run();
}

}  // namespace trellis::analysis
