#include "sim/storage/checkpoint_plan.h"

#include <numeric>

namespace trellis::sim {

std::int64_t RankFiles::bytes() const {
  return std::accumulate(files.begin(), files.end(), std::int64_t{0});
}

std::int64_t CheckpointPlan::bytes() const {
  std::int64_t sum = 0;
  for (std::size_t rank = 0; rank < class_of.size(); ++rank) sum += of(rank).bytes();
  return sum;
}

std::int64_t CheckpointPlan::gathered_bytes() const {
  std::int64_t sum = 0;
  for (const StateGather& gather : gathers) sum += gather.bytes;
  return sum;
}

std::int64_t CheckpointPlan::files() const {
  std::int64_t sum = 0;
  for (std::size_t rank = 0; rank < class_of.size(); ++rank)
    sum += static_cast<std::int64_t>(of(rank).files.size());
  return sum;
}

}  // namespace trellis::sim
