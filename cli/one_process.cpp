#include "cli/one_process.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"

namespace trellis::cli {
namespace {

struct Launcher {
  const char* name;
  const char* size;  ///< variable: how many processes were started together
  const char* rank;  ///< variable: which of them this one is
};

/// Slurm: the variables of a step, because a batch script has SLURM_NTASKS and SLURM_PROCID too and
/// yet is one process.
constexpr std::array<Launcher, 4> kLaunchers{{
    {"torchrun", "WORLD_SIZE", "RANK"},
    {"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
    {"mpirun (Open MPI)", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"mpiexec (MPICH)", "PMI_SIZE", "PMI_RANK"},
}};

std::string_view variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

/// 0: not a number.
long number(std::string_view text) {
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : 0;
}

}  // namespace

void refuse_several_processes() {
  for (const auto& [name, size, rank] : kLaunchers) {
    const std::string_view processes = variable(size);
    if (number(processes) <= 1) continue;
    const std::string_view mine = variable(rank);
    throw ConfigError(
        fmt::format("environment: {}={}{}: expected one process, because trellis runs every rank "
                    "as a thread of it; "
                    "got one of {} that {} started, and each would run the whole job into one "
                    "folder: start trellis once, "
                    "without {} (trainer.devices and trainer.num_nodes say how many ranks there "
                    "are); if the variable is "
                    "left over from something else, unset {}",
                    size, processes, mine.empty() ? "" : fmt::format(", {}={}", rank, mine),
                    processes, name, name, size));
  }
}

}  // namespace trellis::cli
