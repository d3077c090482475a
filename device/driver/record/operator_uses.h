#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "device/compiler/graph/graph.h"

namespace trellis::device {

/// How often which operators ran with which types, and where. As large as there are operators,
/// types and layers, however long it counts.
class OperatorUses {
 public:
  using TypeOf = std::pair<DType, HostType>;
  struct Use {
    std::int64_t count = 0;
    std::map<std::string, std::int64_t> places;  ///< "forward model.layers.0" → how often there
  };

  /// Adds the operators that `graph` runs, `times` times. Numbers without dimensions are left out:
  /// the real device keeps them on the host.
  void add(const Graph& graph, std::int64_t times);
  void add(const OperatorUses& other);
  void add(const std::string& op, TypeOf type, const Use& use);
  void clear() { uses_.clear(); }
  [[nodiscard]] const std::map<std::pair<std::string, TypeOf>, Use>& uses() const { return uses_; }

 private:
  std::map<std::pair<std::string, TypeOf>, Use> uses_;
};

}  // namespace trellis::device
