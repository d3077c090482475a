#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/content_hash.h"
#include "device/compiler/graph/graph.h"

namespace trellis::device {

/// Notices steps that go on to bring graphs which differ from earlier ones only in shapes:
/// the device compiles each of them, which takes minutes, and inputs that are padded to a few
/// lengths need none.
class ShapeChurn {
 public:
  /// A graph that the rank had not run before.
  void add(const Graph& graph);
  /// The warning that the step which ends gives cause for; "": none. The first comes with the
  /// fourth step that brought such a graph, the next ones when their number has doubled.
  [[nodiscard]] std::string end_step();

 private:
  using Shape = std::vector<std::int64_t>;
  /// Graphs of the same operations.
  struct Family {
    std::int64_t graphs = 0;
    std::vector<Shape> shapes;  ///< of the newest one's inputs of operations, in their order
  };
  std::map<ContentHash, Family> families_;
  std::int64_t steps_ = 0, graphs_ = 0;  ///< that brought such graphs; the graphs
  std::int64_t warn_at_ = 4;             ///< steps_
  bool is_fresh_ = false;                ///< the open step brought one
  std::string last_;                     ///< the newest of them, and what differs
};

}  // namespace trellis::device
