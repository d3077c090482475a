#pragma once

#include "trainer/files/checkpoint/conversion/conversion.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint {

/// Writes all tensors into one file of torch.save, a dict by key: `place` itself when its name ends
/// with ".pt", else checkpoint.pt in that folder. Throws ConfigError when the file is there.
void write_full(const TensorSource& source, const Place& place, const ConvertOptions& options,
                const Progress& progress);

}  // namespace trellis::checkpoint
