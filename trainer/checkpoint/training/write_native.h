#pragma once

#include "trainer/config/run_config.h"
#include "trainer/files/checkpoint/conversion/conversion.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint {

struct NativeOptions {
  bool weights_only = false;  ///< no optimizer files, even if `config` asks for them
  bool for_nxd = false;       ///< as NxD's save_checkpoint writes them (nxd_jobs.h), no manifest
  int threads =
      2;  ///< that read and write at the same time; each needs 32 MiB, for experts of NxD 100 MiB
};

/// Writes the checkpoint that a run of `config` would have saved with the tensors of `source`, in
/// the form and with the parts that its keys say: any TP, PP, VPP, DP, ZeRO-1, copies of heads,
/// fused projections, padding, precision. The state of the training is the source's when it is a
/// checkpoint of a training; else a new training can start with the weights. Throws ConfigError
/// with every tensor that is missing or does not fit, before anything is written; damage of the
/// source; OutputError. Returns the bytes of all tensors.
std::int64_t write_native(TensorSource& source, const Place& place,
                          const trainer::RunConfig& config, const NativeOptions& options,
                          const Progress& progress);

}  // namespace trellis::checkpoint
