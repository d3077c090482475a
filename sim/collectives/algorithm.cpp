#include "sim/collectives/algorithm.h"

#include <array>

#include "base/error.h"
#include "base/nearest.h"

namespace trellis::sim {
namespace {

constexpr auto kNames = std::to_array<std::string_view>(
    {"ring", "mesh", "single_step_mesh", "rdh", "kangaring", "hierarchical"});
static_assert(kNames.size() == kNumAlgorithms);

}  // namespace

std::string_view name(Algorithm algorithm) {
  return kNames.at(static_cast<std::size_t>(algorithm));
}

std::vector<std::string> algorithm_names() { return {kNames.begin(), kNames.end()}; }

Algorithm parse_algorithm(const std::string& text) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (text == kNames[i]) return static_cast<Algorithm>(i);
  }
  std::string known;
  for (const auto each : kNames) known += (known.empty() ? "" : ", ") + std::string(each);
  const std::string near = nearest_name(text, algorithm_names());
  throw ConfigError("unknown algorithm \"" + text + "\"" +
                    (near.empty() ? "" : "; did you mean " + near + "?") + "; known: auto, " +
                    known);
}

std::string describe(const AlgorithmChoice& choice) {
  std::string text(name(choice.algorithm));
  if (choice.algorithm != Algorithm::kHierarchical) return text;
  return text + " (" + std::string(name(choice.inside)) + " inside, " +
         std::string(name(choice.across)) + " across)";
}

}  // namespace trellis::sim
