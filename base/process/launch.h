#pragma once

#include <functional>
#include <optional>
#include <string>

namespace trellis {

/// This process's place among those that a launcher started together.
struct Launch {
  std::string launcher;  ///< "torchrun", "srun (Slurm)", "mpirun (Open MPI)", …
  int process = 0;
  int processes = 1;
  std::string address;          ///< of the host of process 0
  int port = 29500;             ///< where its store listens
  bool store_is_there = false;  ///< torchrun's agent serves the store; otherwise process 0 does
  int restart = 0;              ///< torchrun: how often the job was started again
  int local_process = 0;        ///< among those on this host; 0 where the launcher does not say
  std::string job;              ///< the launcher's number of the job; "": it has none
};

/// Value of an environment variable; "": unset.
using Environment = std::function<std::string(const std::string& name)>;
[[nodiscard]] std::string process_environment(const std::string& name);

/// Reads the environment variables of a launcher:
///
///   torchrun     RANK WORLD_SIZE MASTER_ADDR MASTER_PORT (PyTorch, "torchrun")
///   Slurm        SLURM_PROCID SLURM_STEP_NUM_TASKS; MASTER_ADDR, or the first host of
///                SLURM_STEP_NODELIST; MASTER_PORT, or a port that follows from SLURM_JOB_ID.
///                Variables of a step, because a batch script has SLURM_NTASKS too and is alone
///   Open MPI     OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE; MASTER_ADDR unless all are on one host
///   Kubernetes   JOB_COMPLETION_INDEX of an indexed job; WORLD_SIZE and MASTER_ADDR from its
///                template
///
/// A torchrun that another launcher started counts alone. Nullopt: this process is alone. Throws
/// ConfigError that names the variables: half an environment, numbers out of range, two launchers
/// at once, a launcher whose processes cannot speak to each other (MPICH's).
[[nodiscard]] std::optional<Launch> find_launch(const Environment& environment);

}  // namespace trellis
