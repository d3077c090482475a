#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trainer/checkpoint/engine/state_files.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/files/checkpoint/formats/native/manifest.h"
#include "trainer/files/checkpoint/storage/place.h"
#include "trainer/nxd/nxd_model.h"

/// The part of a checkpoint that belongs to one rank of a user's model.
namespace trellis::trainer {

/// Weights and buffers, and states of the optimizer unless it is null.
[[nodiscard]] checkpoint::LiveState live_state_of(const NxDModel& model,
                                                  const NeuronZero1Optimizer* optimizer);
[[nodiscard]] checkpoint::native::FilePlace file_place(const ParallelState& parallel, int rank,
                                                       bool zero1);
/// Parallel sizes for the manifest of a checkpoint.
[[nodiscard]] std::map<std::string, std::int64_t> layout_numbers(const ParallelState& parallel,
                                                                 const NxDModel* model);

/// Names of the files that hold a rank's dicts, and the ranks that have equal ones.
struct DictFiles {
  std::string model, optimizer;
  std::vector<int> copies;
};
[[nodiscard]] DictFiles dict_files(const ParallelState& parallel, int rank, bool zero1_optimizer);
/// Fills the tensors of dicts, of which each may be null, from this rank's files. Throws
/// ConfigError with every name that one side misses, when `strict`; else what both have is filled.
void load_dicts(const checkpoint::Place& place, const checkpoint::native::Manifest& manifest,
                const ParallelState& parallel, int rank, checkpoint::native::TensorDict* model,
                checkpoint::native::TensorDict* optimizer, bool strict);
/// Copies the values of `stored` into the tensors of the same names.
void fill_dict(checkpoint::native::TensorDict& dict, const checkpoint::native::TensorDict& stored,
               bool strict, const std::string& where);

}  // namespace trellis::trainer
