#include "cli/options/shard_of_launch.h"

#include <filesystem>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/process/launch.h"
#include "cli/options/not_empty.h"

namespace trellis::cli {

void add_part_options(CLI::App& verb, std::string& shard, std::string& out) {
  verb.add_option("--out", out,
                  "folder for the journal: the same command goes on where it was cut off")
      ->type_name("DIR")
      ->check(not_empty("a folder"));
  verb.add_option("--shard", shard,
                  "i/n: the i-th of n parts, for job arrays; merged by `trellis " +
                      verb.get_name() + " merge`")
      ->type_name("i/n")
      ->check(not_empty("i/n"));
}

bool take_shard_of_launch(std::string_view verb, std::string& shard, std::string& out) {
  const std::optional<Launch> launch = find_launch(process_environment);
  const bool launched = launch && launch->processes > 1;
  if (launched) {
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
  return launched;
}

}  // namespace trellis::cli
