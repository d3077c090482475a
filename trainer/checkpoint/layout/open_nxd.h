#pragma once

#include <memory>
#include <string>

#include "trainer/config/run_config.h"
#include "trainer/files/checkpoint/conversion/nxd_content.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint {

/// The part of a folder that is opened.
enum class NxdPart {
  kAll,
  kWeights,  ///< no optimizer states
  kTrained,  ///< what fine-tuning with adapters trains: other weights need not be there
};

/// Opens a folder of NxD, NxDT or NNM (formats/nxd), of weights and optimizer states. `config`: of
/// the training that wrote it; TP, PP, DP, ZeRO-1 and the padding of the vocabulary are those of
/// the files. Opens every file once. Throws ConfigError with every tensor that is missing or has
/// another shape. REQUIRES: nxd::is_nxd_folder(place).
[[nodiscard]] std::unique_ptr<TensorSource> open_nxd(const Place& place,
                                                     const trainer::RunConfig& config,
                                                     NxdPart part = NxdPart::kAll);

/// The same as data.
[[nodiscard]] NxdContent read_nxd(const Place& place, const trainer::RunConfig& config,
                                  NxdPart part = NxdPart::kAll);

/// open_checkpoint(), and with the configuration those, too.
[[nodiscard]] std::unique_ptr<TensorSource> open_checkpoint(const std::string& address,
                                                            const trainer::RunConfig& config);

}  // namespace trellis::checkpoint
