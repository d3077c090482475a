#pragma once

#include <memory>
#include <string>

#include "trainer/files/checkpoint/formats/megatron/name_map.h"
#include "trainer/files/checkpoint/formats/native/manifest.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint {

/// Content of the files in a folder of NxD, NxDT or NNM.
struct NxdContent {
  std::string format;  ///< "nxd", "nxd_legacy", "nnm"
  native::Manifest manifest;
  bool is_renamed = false;  ///< a Llama under Megatron's names: megatron::as_llama
  megatron::AttentionSizes attention = {};
  bool has_stacked_experts = false;  ///< nxd::experts_in_rows
};
[[nodiscard]] std::unique_ptr<TensorSource> nxd_source(const Place& place, NxdContent content);

/// The content without a configuration: the tensors of each rank under "<file>:<path>", which does
/// not show the weights that they are parts of. REQUIRES: nxd::is_nxd_folder(place). Throws
/// ConfigError.
[[nodiscard]] NxdContent read_rank_files(const Place& place);

/// open_checkpoint(), and such folders by their files: for those that show and compare.
[[nodiscard]] std::unique_ptr<TensorSource> open_for_reading(const std::string& address);

}  // namespace trellis::checkpoint
