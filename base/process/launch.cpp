#include "base/process/launch.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"

namespace trellis {
namespace {

constexpr int kLowestFreePort = 20000, kFreePorts = 10000;  // below Linux's ephemeral ports (32768)

/// The variables of a launcher.
struct Variables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* sign;   ///< set by this launcher alone
  const char* local;  ///< of a process among those on its host
  const char* job;    ///< the same for all processes of the job
};
constexpr std::array<Variables, 5> kLaunchers{{
    {"torchrun", "RANK", "WORLD_SIZE", "RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"},
    {"srun (Slurm)", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID", "SLURM_JOB_ID"},
    {"mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_MCA_ess_base_jobid"},
    {"an indexed job of Kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE", "JOB_COMPLETION_INDEX",
     "", ""},
    {"mpiexec (MPICH)", "PMI_RANK", "PMI_SIZE", "PMI_SIZE", "", ""},
}};
constexpr const Variables& kTorchrun = kLaunchers[0];
constexpr const Variables& kSlurm = kLaunchers[1];
constexpr const Variables& kOpenMpi = kLaunchers[2];
constexpr const Variables& kMpich = kLaunchers[4];

int number(const Environment& environment, const char* name, int lowest, int highest) {
  const std::string text = environment(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= lowest &&
      value <= highest)
    return value;
  throw ConfigError(
      fmt::format("environment: {}={}: expected a whole number from {} to {}: correct it, or unset "
                  "the variables of the launcher",
                  name, text, lowest, highest));
}

[[noreturn]] void throw_missing(const Environment& environment, const Variables& launcher,
                                const char* missing, const char* what) {
  const char* there = environment(launcher.rank).empty() ? launcher.size : launcher.rank;
  throw ConfigError(
      fmt::format("environment: {}={} is set as {} does, but {} is not: expected {}: set {}, or "
                  "unset {} to run one process",
                  there, environment(there), launcher.launcher, missing, what, missing, there));
}

/// "node[03-07,9]" and "node03,node04": node03.
std::string first_host(const std::string& nodes) {
  const auto bracket = nodes.find_first_of("[,");
  if (bracket == std::string::npos || nodes[bracket] == ',') return nodes.substr(0, bracket);
  const auto end = nodes.find_first_of("-,]", bracket);
  return nodes.substr(0, bracket) + nodes.substr(bracket + 1, end - bracket - 1);
}

std::string address_of(const Environment& environment, const Variables& launcher) {
  const std::string named = environment("MASTER_ADDR");
  if (!named.empty()) return named;
  if (&launcher == &kSlurm) {
    const std::string nodes = environment("SLURM_STEP_NODELIST");
    if (!nodes.empty()) return first_host(nodes);
  }
  const std::string on_this_host = environment("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (&launcher == &kOpenMpi && on_this_host == environment(launcher.size)) return "127.0.0.1";
  throw_missing(environment, launcher, "MASTER_ADDR",
                "the name or address of the host of process 0");
}

int port_of(const Environment& environment, const Variables& launcher) {
  constexpr int kHighestPort = 65535;
  if (!environment("MASTER_PORT").empty())
    return number(environment, "MASTER_PORT", 1, kHighestPort);
  if (&launcher == &kTorchrun)
    throw_missing(environment, launcher, "MASTER_PORT", "a free port of the host of process 0");
  constexpr int kMostJobs = 2147483647;
  if (&launcher == &kSlurm && !environment("SLURM_JOB_ID").empty())
    return kLowestFreePort + number(environment, "SLURM_JOB_ID", 0, kMostJobs) % kFreePorts;
  return Launch{}.port;
}

/// Those whose sign is there.
std::vector<const Variables*> launchers_of(const Environment& environment) {
  // Started by another launcher once per node, torchrun starts the processes.
  if (!environment("TORCHELASTIC_RUN_ID").empty()) return {&kTorchrun};
  std::vector<const Variables*> found;
  for (const Variables& launcher : kLaunchers) {
    if (!environment(launcher.sign).empty()) found.push_back(&launcher);
  }
  if (found.empty() && !environment(kTorchrun.size).empty()) found.push_back(&kTorchrun);
  return found;
}

void refuse_two(const Environment& environment, const std::vector<const Variables*>& found) {
  if (found.size() < 2) return;
  const auto shown = [&](const Variables& launcher) {
    return fmt::format("{} ({}={}, {}={})", launcher.launcher, launcher.rank,
                       environment(launcher.rank), launcher.size, environment(launcher.size));
  };
  throw ConfigError(
      fmt::format("environment: two launchers at once: {} and {}: expected one to say which "
                  "process this is: start the job by one of them, or unset {} or {}",
                  shown(*found[0]), shown(*found[1]), found[1]->sign, found[0]->sign));
}

}  // namespace

std::string process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

std::optional<Launch> find_launch(const Environment& environment) {
  std::vector<const Variables*> found = launchers_of(environment);
  std::erase_if(found, [&](const Variables* each) { return environment(each->size) == "1"; });
  refuse_two(environment, found);
  if (found.empty()) return std::nullopt;
  const Variables& launcher = *found.front();
  if (environment(launcher.size).empty())
    throw_missing(environment, launcher, launcher.size, "how many processes the job has");
  if (environment(launcher.rank).empty())
    throw_missing(environment, launcher, launcher.rank, "which of the processes this one is");
  constexpr int kMostProcesses = 65536;
  Launch launch;
  launch.launcher = launcher.launcher;
  launch.processes = number(environment, launcher.size, 1, kMostProcesses);
  launch.process = number(environment, launcher.rank, 0, launch.processes - 1);
  if (launch.processes == 1) return std::nullopt;
  if (&launcher == &kMpich) {
    throw ConfigError(
        fmt::format("environment: {}={}: started by mpiexec of MPICH, which says nothing about the "
                    "hosts of its processes: expected torchrun, srun, mpirun of Open MPI or an "
                    "indexed job of Kubernetes: use one of them, or unset {}",
                    launcher.size, launch.processes, launcher.size));
  }
  launch.address = address_of(environment, launcher);
  launch.port = port_of(environment, launcher);
  launch.store_is_there = environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const std::string restarts = environment("TORCHELASTIC_RESTART_COUNT");
  if (!restarts.empty())
    launch.restart = number(environment, "TORCHELASTIC_RESTART_COUNT", 0, kMostProcesses);
  launch.job = environment(launcher.job);
  if (!environment(launcher.local).empty())
    launch.local_process = number(environment, launcher.local, 0, launch.processes - 1);
  return launch;
}

}  // namespace trellis
