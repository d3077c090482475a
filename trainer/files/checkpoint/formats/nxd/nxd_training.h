#pragma once

#include <optional>

#include "trainer/files/checkpoint/containers/value.h"
#include "trainer/files/checkpoint/formats/nxd/nxd_folder.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"

namespace trellis::checkpoint::nxd {

/// State of the training that a folder records in addition to tensors.
struct NxdTraining {
  SavedPoint point;
  std::optional<Value> scheduler = {};  ///< torch's state of the one learning rate schedule
  Value content = {};                   ///< of user_content.pt, or of NNM's file; None: neither
};

/// Step: global_step of user_content.pt (NxDT, which is Lightning's form) or of NNM's files, else
/// of the folder's name, else the number of steps that the optimizer counted. Samples: of the name,
/// or 0. A value that cannot be read is a warning.
[[nodiscard]] NxdTraining read_training(const Place& place, const NxdFolder& folder);

}  // namespace trellis::checkpoint::nxd
