#pragma once

#include <string>
#include <string_view>

#include <CLI/App.hpp>

namespace trellis::cli {

/// --out and --shard of a verb whose parts `trellis VERB merge` joins.
void add_part_options(CLI::App& verb, std::string& shard, std::string& out);

/// A work that parts of can be done by separate processes: where a launcher (base/process/launch.h)
/// started several, each takes the part of its number, `shard` "i/n", and a separate folder in
/// `out`. Returns whether one did. Throws ConfigError: a shard without a folder for its journal, or
/// a launcher and --shard.
bool take_shard_of_launch(std::string_view verb, std::string& shard, std::string& out);

}  // namespace trellis::cli
