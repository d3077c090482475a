#include "trainer/files/checkpoint/formats/nxd/nxd_training.h"

#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "trainer/files/checkpoint/containers/dcp.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"

namespace trellis::checkpoint::nxd {
namespace {

/// A number of a dict; 0: it has none.
std::int64_t number_of(const Value& content, const char* key) {
  const Value* value = content.find(key);
  return value != nullptr && value->is(Value::Kind::kInt) && value->as_int() > 0 ? value->as_int()
                                                                                 : 0;
}

void take_content(const Value& content, NxdTraining& training) {
  training.content = content;
  for (const char* key : {"step", "global_step"}) {
    if (const std::int64_t step = number_of(content, key); step > 0) training.point.step = step;
  }
  if (const std::int64_t samples = number_of(content, "consumed_samples"); samples > 0)
    training.point.consumed_samples = samples;
  const Value* schedulers = content.find("lr_schedulers");
  if (schedulers != nullptr && schedulers->is(Value::Kind::kList) &&
      schedulers->items().size() == 1 && schedulers->items().front().is_dict())
    training.scheduler = schedulers->items().front();
  for (const char* key : {"scheduler", "lr_scheduler"}) {
    const Value* scheduler = content.find(key);
    if (scheduler != nullptr && scheduler->is_dict()) training.scheduler = *scheduler;
  }
}

/// Steps that the optimizer's dict counted: "step" of the first parameter that has one.
std::int64_t counted_steps(const TorchFileReader& file, const Value& dict) {
  for (const char* states : {"base_state", "state"}) {
    const Value* parameters = dict.find(states);
    if (parameters == nullptr || !parameters->is_dict()) continue;
    for (const auto& [id, state] : parameters->as_dict()) {
      const Value* step = state.find("step");
      if (step == nullptr) continue;
      if (step->is(Value::Kind::kInt)) return step->as_int();
      if (!step->is_tensor()) continue;
      const TensorMeta& meta = file.tensors().at(static_cast<std::size_t>(step->as_tensor())).meta;
      if (meta.dtype != DType::kFloat32 || elements_of(meta.shape) != 1) continue;
      float number = 0;
      file.read_tensor(step->as_tensor(), std::as_writable_bytes(std::span(&number, 1)));
      if (std::isfinite(number) && number >= 0 && number < 1e9F)
        return static_cast<std::int64_t>(number);
    }
  }
  return 0;
}

/// The same of a folder of DCP.
std::int64_t counted_steps(const DcpReader& states) {
  for (const auto& [key, tensor] : states.metadata().tensors) {
    if (!key.starts_with("base_state.") || !key.ends_with(".step")) continue;
    if (tensor.meta.dtype != DType::kFloat32 || elements_of(tensor.meta.shape) != 1) continue;
    float number = 0;
    states.read_chunk(key, 0, 0, std::as_writable_bytes(std::span(&number, 1)));
    if (std::isfinite(number) && number >= 0 && number < 1e9F)
      return static_cast<std::int64_t>(number);
  }
  return 0;
}

/// Calls `take(file)`; the file need not be there.
template <typename Take>
void with_file(const Place& place, const std::string& path, Take take) {
  if (!place.has(path)) return;
  try {
    take(TorchFileReader(place.storage->open(join_path(place.path, path)), known_classes()));
  } catch (const ConfigError& error) {
    log_warning(std::string(error.what()) + ": what it says of the training is not taken");
  }
}

}  // namespace

NxdTraining read_training(const Place& place, const NxdFolder& folder) {
  const NameNumbers numbers = numbers_of_name(place.path);
  NxdTraining training{{numbers.step, numbers.consumed_samples}};
  const std::string content = folder.kind == NxdFolder::Kind::kNxd ? native::kUserContentFile
                                                                   : folder.model_file(place, {});
  with_file(place, content,
            [&](const TorchFileReader& file) { take_content(file.root(), training); });
  if (training.point.step == 0 && folder.states_in_dcp)
    training.point.step = counted_steps(DcpReader(place.storage, join_path(place.path, "optim")));
  if (training.point.step == 0 && folder.has_optimizer && !folder.states_in_dcp)
    with_file(place, folder.optimizer_file(place, {}), [&](const TorchFileReader& file) {
      const Value* state = &file.root();
      if (!folder.optimizer_key.empty()) state = state->find(folder.optimizer_key);
      if (state != nullptr && state->is(Value::Kind::kList)) state = &state->items().front();
      if (state != nullptr) training.point.step = counted_steps(file, *state);
    });
  if (!training.scheduler)
    with_file(place, native::kSchedulerFile, [&](const TorchFileReader& file) {
      if (file.root().is_dict()) training.scheduler = file.root();
    });
  return training;
}

}  // namespace trellis::checkpoint::nxd
