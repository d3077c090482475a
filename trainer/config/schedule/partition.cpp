#include "trainer/config/schedule/partition.h"

#include <algorithm>

#include "base/error.h"

namespace trellis::trainer {
namespace {

std::string valid_cuts(const std::vector<std::string>& names) {
  if (names.size() <= 8) {
    std::string text;
    for (std::size_t i = 0; i + 1 < names.size(); ++i) text += (i > 0 ? ", " : "") + names[i];
    return text;
  }
  return names[0] + ", " + names[1] + ", … " + names[names.size() - 2];
}

/// The problem with one cut that follows the cut after layer `previous`; "": none.
std::string problem_of(const std::vector<std::string>& names, const std::string& cut, int layer,
                       int previous) {
  const std::string who = "model.pipeline_cuts: \"" + cut + "\"";
  if (layer == static_cast<int>(names.size()))
    return who + " is no layer of the model: expected one of " + valid_cuts(names);
  if (layer + 1 == static_cast<int>(names.size()))
    return who + " is the last layer: the final stage would get none; expected one of " +
           valid_cuts(names);
  if (layer == previous) return who + " occurs twice: a stage would get no layer";
  if (layer < previous)
    return who + " comes after " + names[static_cast<std::size_t>(previous)] +
           ": expected the cuts in the order of the layers";
  return "";
}

}  // namespace

std::vector<LayerRange> partition_layers(int num_layers, int num_stages) {
  if (num_layers < num_stages) {
    throw ConfigError(
        "distributed_strategy.pipeline_model_parallel_size · virtual_pipeline_model_parallel_size: "
        "each stage needs a layer: "
        "expected at most " +
        std::to_string(num_layers) + " (model.num_layers), got " + std::to_string(num_stages));
  }
  std::vector<LayerRange> ranges;
  int first = 0;
  for (int stage = 0; stage < num_stages; ++stage) {
    const bool takes_one_more = stage >= num_stages - num_layers % num_stages;
    const int count = num_layers / num_stages + (takes_one_more ? 1 : 0);
    ranges.push_back({first, first + count});
    first += count;
  }
  return ranges;
}

std::vector<LayerRange> partition_layers(const std::vector<std::string>& layer_names,
                                         const std::vector<std::string>& cuts, int num_stages) {
  std::string problems;
  const auto report = [&problems](const std::string& problem) {
    if (!problem.empty()) problems += (problems.empty() ? "" : "\n") + problem;
  };
  if (static_cast<int>(cuts.size()) != num_stages - 1) {
    report(
        "model.pipeline_cuts: expected " + std::to_string(num_stages - 1) +
        " names (pipeline_model_parallel_size · virtual_pipeline_model_parallel_size − 1), got " +
        std::to_string(cuts.size()));
  }
  std::vector<LayerRange> ranges;
  int first = 0, previous = -1;
  for (const std::string& cut : cuts) {
    const int layer = static_cast<int>(std::find(layer_names.begin(), layer_names.end(), cut) -
                                       layer_names.begin());
    report(problem_of(layer_names, cut, layer, previous));
    if (layer < static_cast<int>(layer_names.size())) previous = layer;
    ranges.push_back({first, layer + 1});
    first = layer + 1;
  }
  ranges.push_back({first, static_cast<int>(layer_names.size())});
  if (!problems.empty()) throw ConfigError(problems);
  return ranges;
}

}  // namespace trellis::trainer
