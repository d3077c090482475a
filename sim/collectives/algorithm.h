#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trellis::sim {

/// How the members of a group exchange their data (SDK intranode-collective-comm.rst,
/// internode-collective-comm.rst).
enum class Algorithm : std::uint8_t {
  kRing,  ///< O(N) steps to the next member, both ways round, over two Hamiltonian cycles where all
          ///< chips of a torus take part
  kMesh,  ///< O(1): between the chips, then inside each chip
  kSingleStepMesh,   ///< all-reduce only: everybody sends the whole buffer to everybody
  kHalvingDoubling,  ///< O(log N): the torus as a hypercube, then inside each chip ("rdh")
  kKangaRing,        ///< O(N/2): a ring of pairs, one read for two writes
  kHierarchical,     ///< inside the nodes and between them, in stages
};
inline constexpr int kNumAlgorithms = 6;

[[nodiscard]] std::string_view name(Algorithm);
/// Throws ConfigError naming the nearest one.
[[nodiscard]] Algorithm parse_algorithm(const std::string& text);
[[nodiscard]] std::vector<std::string> algorithm_names();

/// The algorithm of a collective. kHierarchical also names the algorithms of its stages.
struct AlgorithmChoice {
  Algorithm algorithm = Algorithm::kRing;
  Algorithm inside = Algorithm::kRing, across = Algorithm::kRing;  ///< kHierarchical only
  auto operator<=>(const AlgorithmChoice&) const = default;
};
/// "kangaring" or "hierarchical (kangaring inside, ring across)".
[[nodiscard]] std::string describe(const AlgorithmChoice& choice);

}  // namespace trellis::sim
