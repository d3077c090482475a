#include "sim/cluster/resource_classes.h"

#include <algorithm>
#include <map>

namespace trellis::sim {
namespace {

/// One use of a resource: a phase of a profile that uses it, with its bytes.
struct Use {
  std::uint32_t phase = 0;  ///< counted through the profiles
  std::int64_t bytes = 0;
  auto operator<=>(const Use&) const = default;
};

}  // namespace

ResourceClasses::ResourceClasses(const std::vector<CommProfile*>& profiles,
                                 const CommMachine& machine) {
  std::map<ResourceId, std::vector<Use>> uses;
  std::uint32_t number = 0;
  for (const CommProfile* profile : profiles) {
    for (const CommPhase& phase : profile->phases) {
      for (const auto& load : phase.loads) uses[load.resource].push_back({number, load.bytes});
      ++number;
    }
  }
  std::map<std::pair<double, std::vector<Use>>, ResourceId> lowest;
  for (auto& [resource, of] : uses)
    members_[lowest.try_emplace({machine.rate(resource).value, std::move(of)}, resource)
                 .first->second]
        .push_back(resource);
  for (CommProfile* profile : profiles) {
    for (CommPhase& phase : profile->phases)
      std::erase_if(phase.loads,
                    [this](const auto& load) { return !members_.contains(load.resource); });
  }
}

}  // namespace trellis::sim
