#include "trainer/data/data_module.h"

#include <c10/util/Exception.h>

namespace trellis::trainer {
const char* name_of(Split split) {
  constexpr const char* kNames[] = {"train", "validation", "test"};
  return kNames[static_cast<int>(split)];
}

std::vector<MicroBatch> DataModule::evaluation_batches(Split split, std::int64_t, int) const {
  TORCH_INTERNAL_ASSERT(false, "these data have no ", name_of(split), " split");
}

std::vector<MicroBatch> DataModule::pairs_in_order(Split split, std::int64_t, int) const {
  TORCH_INTERNAL_ASSERT(false, "these data have no pairs in their ", name_of(split), " split");
}

}  // namespace trellis::trainer
