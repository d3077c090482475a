#include "cli/shard_of_launch.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "base/launch.h"
#include "base/log.h"

namespace trellis::cli {

void take_shard_of_launch(std::string_view verb, std::string& shard, std::string& out) {
  const std::optional<Launch> launch = find_launch(process_environment);
  if (launch && launch->processes > 1) {
    if (!shard.empty())
      throw ConfigError(
          fmt::format("--shard {}: {} started {} processes, which would all do this part: leave it "
                      "out, then each does the part of its number",
                      shard, launch->launcher, launch->processes));
    if (out.empty())
      throw ConfigError(
          fmt::format("environment: {} started {} processes, and each does a part, which is of use "
                      "only with its journal: give --out DIR, which `trellis {} merge DIR/*` reads",
                      launch->launcher, launch->processes, verb));
    const int number = launch->process + 1;
    shard = fmt::format("{}/{}", number, launch->processes);
    out =
        (std::filesystem::path(out) / fmt::format("{}-of-{}", number, launch->processes)).string();
    log_info(fmt::format("part {} of {}: {}", number, launch->processes, out));
  }
  if (!shard.empty() && out.empty())
    throw ConfigError(fmt::format(
        "--shard {}: a part is of use only with its journal: give --out DIR too, which `trellis {} "
        "merge` reads",
        shard, verb));
}

}  // namespace trellis::cli
