#pragma once

#include <cstdint>

#include "trainer/files/checkpoint/conversion/conversion.h"
#include "trainer/files/checkpoint/formats/megatron/name_map.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint {

/// Writes a folder of megatron.core.dist_checkpointing (torch_dist): weights under Megatron-core's
/// names with an axis of layers, optimizer states in the reshardable form, common.pt with the
/// model's sizes and the iteration, `metadata.json` last. It loads in every layout. Throws
/// ConfigError when weights have no place there, or when the folder is there.
void write_megatron(const TensorSource& source, const Place& place, const ConvertOptions& options,
                    const megatron::AttentionSizes& attention, const Progress& progress);

}  // namespace trellis::checkpoint
