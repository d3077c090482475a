#pragma once

namespace trellis::cli {

/// A run is one process: its ranks are threads. Throws ConfigError when a launcher (torchrun, srun,
/// mpirun) started this process as one of several, each of which would run the whole job and write
/// to the same folder.
void refuse_several_processes();

}  // namespace trellis::cli
