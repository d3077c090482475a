#include "trainer/nxd/lora_checkpoints.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "runtime/ranks/world.h"
#include "trainer/checkpoint/state/merged_weights.h"
#include "trainer/checkpoint/state/shared_load.h"
#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/checkpoint/training/lora_config.h"
#include "trainer/config/sections/adapter_config.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/native_source.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/files/checkpoint/storage/place.h"
#include "trainer/nxd/nxd_model.h"
#include "trainer/nxd/rank_files.h"
#include "trainer/nxd/saved_lora.h"
#include "trainer/parallel_layers/lora.h"

namespace trellis::trainer {
namespace {

using checkpoint::LiveState;
using checkpoint::LiveTensor;
using checkpoint::Place;
using checkpoint::TensorEntry;
using checkpoint::Value;
using checkpoint::native::NativeSource;

}  // namespace

void load_adapters(runtime::RankContext& rank, NxDModel& model) {
  const at::NoGradGuard no_grad;
  const LoraSection& lora = *model.lora();
  const NativeSource source(adapter_place(lora.folder, lora.tag));
  std::map<std::string, const TensorEntry*> entries;
  for (const TensorEntry& entry : source.tensors()) entries.emplace(entry.key, &entry);
  const LiveState live =
      checkpoint::trained_part(model.parameter_list(), live_state_of(model, nullptr));
  Problems problems;
  for (const LiveTensor& tensor : live.model) {
    for (const checkpoint::ShardedPart& part : tensor.parts) {
      const auto found = entries.find(part.tensor.key);
      if (found == entries.end() || found->second->shape != part.tensor.global_shape) {
        problems.add(source.address(),
                     part.tensor.key + ": expected the shape " +
                         checkpoint::text_of(part.tensor.global_shape) + ", got " +
                         (found == entries.end() ? std::string("none")
                                                 : checkpoint::text_of(found->second->shape)));
        continue;
      }
      at::Tensor values =
          at::empty(part.tensor.local_shape,
                    at::TensorOptions().dtype(checkpoint::scalar_type_of(found->second->dtype)));
      source.read(*found->second, {part.tensor.global_offset, part.tensor.local_shape},
                  {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
      checkpoint::box_of(tensor.values, part.local.offset, part.local.shape).copy_(values);
    }
  }
  problems.throw_if_any();
  rank.host_barrier(checkpoint::kStorageTimeout);
}

LiveState saved_with_adapters(const NxDModel& model, LiveState live) {
  const LoraSection* lora = model.lora();
  if (lora == nullptr) return live;
  if (lora->merge) return {checkpoint::merged_weights(live.model, lora->scale()), {}};
  return lora->save_base ? live : checkpoint::trained_part(model.parameter_list(), std::move(live));
}

bool is_trained_key(const LoraSection& lora, const std::string& key) {
  Parameter parameter;
  parameter.name = key;
  parameter.adapter =
      key.find(".lora_A.") != std::string::npos || key.find(".lora_B.") != std::string::npos;
  return is_trained(lora, parameter);
}

Value lora_config_in_file(const NxDModel* model) {
  const LoraSection* lora = model == nullptr ? nullptr : model->lora();
  if (lora == nullptr || lora->merge || !lora->config_in_file) return {};
  return checkpoint::lora_config_value(*lora);
}

void write_adapter_config(const NxDModel* model, checkpoint::Storage& folder) {
  const LoraSection* lora = model == nullptr ? nullptr : model->lora();
  if (lora == nullptr || lora->merge || lora->config_in_file) return;
  folder.write_text(kAdapterConfigFile, checkpoint::lora_config(*lora).dump(2) + "\n");
}

}  // namespace trellis::trainer
