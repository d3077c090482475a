#pragma once

#include <string>
#include <string_view>

namespace trellis::cli {

/// A work that parts of can be done by separate processes: where a launcher (base/launch.h) started
/// several, each takes the part of its number, `shard` "i/n", and a separate folder in `out`.
/// Throws ConfigError: a shard without a folder for its journal, or a launcher and --shard.
void take_shard_of_launch(std::string_view verb, std::string& shard, std::string& out);

}  // namespace trellis::cli
