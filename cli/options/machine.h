#pragma once

#include <string>
#include <vector>

#include "trainer/config/run_config.h"
#include "trainer/config/run_source.h"

namespace trellis::cli {

/// The machine on which a run is emulated. On the command line "" and 0 leave it to the
/// configuration.
struct Machine {
  std::string instance;
  int nodes = 0;
};

/// Takes what `asked` leaves open from the configuration: its key `instance` (none: trn1.32xlarge)
/// and its trainer.num_nodes. Throws ConfigError for an unknown instance of the file, with its line
/// and the known instances.
[[nodiscard]] Machine machine_of(const trainer::RunConfig& config, const Machine& asked);
/// The same for a file. A file with mistakes gives the defaults: its reader lists the mistakes.
[[nodiscard]] Machine machine_of(const std::string& config_file,
                                 const std::vector<std::string>& overrides, const Machine& asked);
/// The same for a verb, in the places of its options: `run` has "" and 0 where none is given.
void choose_machine(trainer::RunSource& run);

}  // namespace trellis::cli
