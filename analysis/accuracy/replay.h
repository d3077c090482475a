#pragma once

#include <functional>
#include <string>
#include <vector>

#include "analysis/accuracy/replay_constants.h"
#include "analysis/accuracy/score.h"
#include "sim/profile/import.h"
#include "sim/sim.h"

/// A real instruction trace executed by the simulator, instruction by instruction.
namespace trellis::analysis {

enum class Transfers {
  kTraced,   ///< a transfer takes from its trigger to its last data what it took on the device,
             ///< and so does the program's start, which is fetches
  kModelled  ///< the simulator decides
};

struct ReplayOptions {
  Transfers transfers = Transfers::kTraced;
  std::string instance;                ///< "": the profile's
  std::vector<std::string> overrides;  ///< KEY=VALUE
  bool explain = true;                 ///< look for the constant that explains what is left
};

/// One instruction, or the data of a transfer, on the device and here. Microseconds from the first
/// instruction of the trace.
struct ReplayedPart {
  std::string name;   ///< "COPY"
  std::string track;  ///< "scalar" or a DMA queue
  std::int64_t pc = 0;
  double real_start = 0, real_end = 0;
  double model_start = 0, model_end = 0;
  [[nodiscard]] double error() const { return model_start - real_start; }
  [[nodiscard]] double end_error() const { return model_end - real_end; }
};

struct Replay {
  std::string file, instance, versions;
  Transfers transfers = Transfers::kTraced;
  double real_span = 0, model_span = 0;  ///< microseconds
  std::vector<ReplayedPart> instructions, queues;
  std::vector<sim::ProfileClock> clock;   ///< as traced
  std::int64_t begin = 0;                 ///< of the trace, nanoseconds
  std::vector<sim::Parameter> constants;  ///< those that were read off traces
  ReplayConstant left;                    ///< key "": nothing explains a tenth of it
  std::vector<std::string> notes;
  [[nodiscard]] double span_error() const { return model_span / real_span - 1; }
  [[nodiscard]] double mean_error() const;
  [[nodiscard]] Summary starts() const;
};

/// Throws ConfigError for a profile of another machine, and Error (kHang), with the profile's
/// instructions named, when the program never ends. One Simulator may exist in a process: none may
/// be alive.
[[nodiscard]] Replay replay(const sim::Profile& profile, const ReplayOptions& options);

/// The instance that a profile's program runs on: `asked`, or the profile's own when it is "".
/// Throws ConfigError when the profile's is not known, or `asked` is of another generation.
[[nodiscard]] std::string machine_of(const sim::Profile& profile, const std::string& asked);

/// The machine that a replay runs on: one physical core, with the numbers that traces gave.
[[nodiscard]] sim::SystemConfig replay_machine(const std::string& instance,
                                               const std::vector<std::string>& overrides);

/// An Error of the simulator about a program that never ends, with what `name` says of each
/// instruction in it: "scalar waits at instruction 5 (pc 70 COPY) for …".
[[nodiscard]] std::string name_instructions(
    const std::string& text, const std::function<std::string(sim::isa::Engine, std::size_t)>& name);

}  // namespace trellis::analysis
