#include "trainer/checkpoint/engine/rank_state_file.h"

#include <utility>

#include <ATen/ops/empty.h>

#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"

namespace trellis::checkpoint::native {
namespace {

at::Tensor content_of(const TorchFileReader& reader, std::int64_t number) {
  const TensorMeta& meta = reader.tensors().at(static_cast<std::size_t>(number)).meta;
  at::Tensor content = at::empty(meta.shape, at::TensorOptions().dtype(scalar_type_of(meta.dtype)));
  reader.read_tensor(number,
                     {static_cast<std::byte*>(content.mutable_data_ptr()), content.nbytes()});
  return content;
}

std::set<std::string> with_references(std::set<std::string> classes) {
  classes.insert("torch_xla.utils.serialization.TensorReference");
  return classes;
}

}  // namespace

RankStateFile::RankStateFile(Place place, std::string path, std::set<std::string> classes)
    : place_(std::move(place)),
      path_(std::move(path)),
      reader_(place_.storage->open(join_path(place_.path, path_)),
              with_references(std::move(classes))) {}

bool RankStateFile::is_tensor(const Value& value) {
  return value.is_tensor() || (value.is(Value::Kind::kObject) && value.find("tid") != nullptr);
}

at::Tensor RankStateFile::tensor(const Value& value) const {
  if (value.is_tensor()) return content_of(reader_, value.as_tensor());
  const std::string file = xser_tensor_file(path_, value.at("tid").as_int());
  const TorchFileReader reader(place_.storage->open(join_path(place_.path, file)));
  return content_of(reader, reader.root().as_tensor());
}

std::map<std::string, at::Tensor> RankStateFile::tensors(const Value& dict) const {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [key, value] : dict.as_dict()) {
    if (key.is_string() && is_tensor(value)) tensors[key.as_string()] = tensor(value);
  }
  return tensors;
}

}  // namespace trellis::checkpoint::native
