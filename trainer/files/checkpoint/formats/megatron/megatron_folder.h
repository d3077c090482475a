#pragma once

#include "trainer/config/model_section.h"
#include "trainer/files/checkpoint/containers/dcp.h"
#include "trainer/files/checkpoint/formats/megatron/name_map.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint::megatron {

/// Empty states of modules that may have some in eight-bit training: Megatron-core asks for them.
/// `metadata` has all weights; their objects go to `file`.
void add_extra_states(DcpMetadata& metadata, DcpFileWriter& file);

/// Writes what a folder has in addition to its data files: common.pt with the sizes of the model,
/// which Megatron-LM compares with its arguments, and the iteration; `.metadata`; and, last,
/// metadata.json. `model`: null: the arguments state what follows from the weights alone. Throws
/// Error when chunks do not cover each tensor once.
void finish_folder(const Place& place, const DcpMetadata& metadata, const AttentionSizes& attention,
                   const SavedPoint& point, const trainer::ModelSection* model);

}  // namespace trellis::checkpoint::megatron
