#include "cli/options/one_process.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/process/launch.h"

namespace trellis::cli {

void refuse_several_processes(std::string_view verb) {
  const std::optional<Launch> launch = find_launch(process_environment);
  if (!launch) return;
  throw ConfigError(fmt::format(
      "environment: trellis {} works in one process, whose threads are the ranks, but "
      "{} started {}, each of which would do the whole work into one folder: start it "
      "once, without {}; if its variables are left over from something else, unset them",
      verb, launch->launcher, launch->processes, launch->launcher));
}

}  // namespace trellis::cli
