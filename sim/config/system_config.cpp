#include "sim/config/system_config.h"

#include <algorithm>

namespace trellis::sim {
Evidence SystemConfig::worst_evidence() const {
  Evidence worst = Evidence::kSpec;
  for (const Parameter& parameter : parameters) worst = std::max(worst, parameter.evidence);
  return worst;
}

}  // namespace trellis::sim
