#include "trainer/nxd/rank_files.h"

#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/checkpoint/engine/rank_state_file.h"
#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/parallel_layers/rank_mesh.h"

namespace trellis::trainer {
namespace {

using checkpoint::LiveState;
using checkpoint::Shape;
using checkpoint::native::TensorDict;

RankMesh mesh_of(const ParallelState& parallel) {
  return {parallel.get_tensor_model_parallel_size(), parallel.get_pipeline_model_parallel_size(),
          parallel.get_data_parallel_size(), parallel.get_context_model_parallel_size(),
          parallel.get_expert_model_parallel_size()};
}

/// Every rank of a stage has the same buffers.
void add_buffers(const NxDModel& model, const checkpoint::RankPlace& place, LiveState& live) {
  for (const auto& [name, buffer] : model.named_buffers()) {
    const Shape shape = buffer.sizes().vec();
    const Shape origin(shape.size(), 0);
    checkpoint::ShardedTensor tensor{.key = name,
                                     .dtype = checkpoint::dtype_of(buffer.scalar_type()),
                                     .local_shape = shape,
                                     .global_shape = shape,
                                     .global_offset = origin};
    tensor.replica_id = {place.tp_rank, place.dp_rank};
    live.model.push_back({name,
                          std::ssize(live.model),
                          "",
                          buffer.detach(),
                          {{std::move(tensor), {origin, shape}}}});
  }
}

/// Throws ConfigError when the file is not what was saved.
checkpoint::native::RankStateFile checked_file(const checkpoint::Place& place,
                                               const checkpoint::native::Manifest& manifest,
                                               const std::string& path) {
  const auto file = place.storage->open(checkpoint::join_path(place.path, path));
  const auto known = manifest.files.find(path);
  if (known == manifest.files.end() || checkpoint::native::hash_file(*file) != known->second)
    throw ConfigError(file->name() +
                      ": its content is not what was saved; load another checkpoint");
  return checkpoint::native::RankStateFile(place, path);
}

}  // namespace

LiveState live_state_of(const NxDModel& model, const NeuronZero1Optimizer* optimizer) {
  const bool zero1 = optimizer != nullptr && optimizer->is_sharded();
  const checkpoint::RankPlace place = checkpoint::place_of(model.parallel(), zero1);
  LiveState live =
      optimizer != nullptr
          ? checkpoint::live_state(model.parameter_list(), *optimizer, model.parallel())
          : LiveState{checkpoint::live_weights(model.parameter_list(), place), {}};
  add_buffers(model, place, live);
  return live;
}

checkpoint::native::FilePlace file_place(const ParallelState& parallel, int rank, bool zero1) {
  return checkpoint::native::file_place_of(mesh_of(parallel), parallel, rank, zero1);
}

std::map<std::string, std::int64_t> layout_numbers(const ParallelState& parallel,
                                                   const NxDModel* model) {
  const RankMesh mesh = mesh_of(parallel);
  std::map<std::string, std::int64_t> layout{{"tp", mesh.tp}, {"pp", mesh.pp},     {"vpp", 1},
                                             {"dp", mesh.dp}, {"cp", mesh.cp},     {"ep", mesh.ep},
                                             {"zero1", 0},    {"kv_replicator", 1}};
  if (model == nullptr) return layout;
  const NxDConfig& config = model->config();
  layout["kv_replicator"] = config.kv_size_multiplier;
  if (config.pipeline_config) layout["vpp"] = config.pipeline_config->virtual_pipeline_size;
  layout["zero1"] = *config.optimizer_config.zero_one_enabled ? 1 : 0;
  return layout;
}

DictFiles dict_files(const ParallelState& parallel, int rank, bool zero1_optimizer) {
  const int tp_rank = parallel.get_tensor_model_parallel_rank();
  const int pp_rank = parallel.get_pipeline_model_parallel_rank();
  if (parallel.get_expert_model_parallel_size() > 1)
    throw ConfigError(
        "model_dict, optimizer_dict: names of their files have no expert-parallel rank: expected "
        "expert_parallel_size 1, got " +
        std::to_string(parallel.get_expert_model_parallel_size()) + "; save the model itself");
  const int dp_rank = zero1_optimizer ? parallel.get_zero1_sharding_group().rank : 0;
  return {checkpoint::native::model_file(tp_rank, pp_rank),
          checkpoint::native::optimizer_file(dp_rank, tp_rank, pp_rank),
          mesh_of(parallel).ranks(ParallelAxis::kZero1Sharding, rank)};
}

void fill_dict(TensorDict& dict, const TensorDict& stored, bool strict, const std::string& where) {
  Problems problems;
  for (const auto& [name, tensor] : dict) {
    const auto found = stored.find(name);
    if (found == stored.end()) {
      if (strict) problems.add(where, name + ": expected, missing");
    } else if (found->second.sizes() != tensor.sizes()) {
      problems.add(where, c10::str(name, ": expected sizes ", tensor.sizes(), ", got ",
                                   found->second.sizes()));
    }
  }
  for (const auto& [name, tensor] : stored) {
    if (strict && !dict.contains(name)) problems.add(where, name + ": unexpected");
  }
  problems.throw_if_any();
  for (auto& [name, tensor] : dict) {
    if (const auto found = stored.find(name); found != stored.end()) tensor.copy_(found->second);
  }
}

void load_dicts(const checkpoint::Place& place, const checkpoint::native::Manifest& manifest,
                const ParallelState& parallel, int rank, TensorDict* model, TensorDict* optimizer,
                bool strict) {
  const auto fill = [&](TensorDict* dict, const std::string& path) {
    if (dict == nullptr) return;
    const checkpoint::native::RankStateFile file = checked_file(place, manifest, path);
    fill_dict(*dict, file.tensors(file.root()), strict, file.name());
  };
  fill(model, dict_files(parallel, rank, false).model);
  // With ZeRO-1 each data-parallel rank has a file; the folder says it, as in NxD.
  const bool zero1 = manifest.files.contains(checkpoint::native::optimizer_file(1, 0, 0));
  fill(optimizer, dict_files(parallel, rank, zero1).optimizer);
}

}  // namespace trellis::trainer
