#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/model_section.h"

namespace trellis::trainer {

/// Picks of each expert, by layer of the whole model.
using PicksByLayer = std::map<int, std::vector<std::int64_t>>;

/// The file of the routing `trace:PATH`: PATH, or report.json in it when it is a folder. None:
/// another routing. Throws ConfigError without a PATH.
[[nodiscard]] std::optional<std::filesystem::path> file_of_routing_trace(
    const std::string& routing);

/// Reads how the routers of a run picked experts from the run's report: the rows of `routing`, each
/// with `layer` and `assigned` (traces/report/expert_load.h). Throws ConfigError with the file: no
/// such file, no JSON, no such rows.
[[nodiscard]] PicksByLayer read_routing_trace(const std::filesystem::path& file);

/// The experts' shares of these picks, by layer. Throws ConfigError, which names the layer and both
/// numbers, when the run had other layers with experts or another number of experts than `model`,
/// or when an expert has more picks than a router of `top_k` can give it. `where` names the file.
[[nodiscard]] std::map<int, std::vector<double>> shares_of_picks(const PicksByLayer& picks,
                                                                 const ModelSection& model,
                                                                 const std::string& where);

/// simulated_shares of every layer with experts, of a routing as the command line has it: those of
/// parse_routing() and `trace:PATH`. REQUIRES: model.moe.
void set_simulated_routing(ModelSection& model, const std::string& routing);

}  // namespace trellis::trainer
