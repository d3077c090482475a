#pragma once

#include <unordered_map>
#include <vector>

#include "sim/cluster/comm_profile.h"

namespace trellis::sim {

/// Resources of one rate of which all communications of a job ask the same at the same moments are
/// busy at the same times: one server represents them. A collective of 32 cores uses some two
/// hundred resources of a few classes.
class ResourceClasses {
 public:
  /// Leaves in the profiles the lowest resource of each class alone.
  ResourceClasses(const std::vector<CommProfile*>& profiles, const CommMachine& machine);
  /// Ascending, `lowest` first. REQUIRES: `lowest` is in a profile.
  [[nodiscard]] const std::vector<ResourceId>& members(ResourceId lowest) const {
    return members_.at(lowest);
  }

 private:
  std::unordered_map<ResourceId, std::vector<ResourceId>> members_;
};

}  // namespace trellis::sim
