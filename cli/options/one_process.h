#pragma once

#include <string_view>

namespace trellis::cli {

/// For verbs whose ranks are threads of one process. Throws ConfigError when a launcher (torchrun,
/// srun, mpirun) started this process as one of several, each of which would do the whole work and
/// write to the same folder, and for half a launcher's environment.
void refuse_several_processes(std::string_view verb);

}  // namespace trellis::cli
